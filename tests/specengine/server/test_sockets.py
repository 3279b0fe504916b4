"""Addresses in use, stale and foreign files: one clear line each."""

import socket
from pathlib import Path

import pytest

from specengine.errors import OptionError
from specengine.server.sockets import bind_tcp, bind_unix, check_unix, remove_unix


def test_a_port_in_use_is_refused_before_anyone_serves():
    with bind_tcp("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OptionError, match=f"127.0.0.1:{port}: address already in use; stop"):
            bind_tcp("127.0.0.1", port)


def test_a_foreign_address_is_refused():
    with pytest.raises(OptionError, match="choose an address of this machine"):
        bind_tcp("203.0.113.1", 8000)


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "", "\udcff", "no.such.host.invalid"])
def test_what_is_no_address_is_one_line(host):
    with pytest.raises(OptionError) as caught:
        bind_tcp(host, 0)
    assert "\n" not in str(caught.value)
    assert "address of this machine" in caught.value.fix


def test_a_refused_port_leaves_no_socket_open():
    with bind_tcp("127.0.0.1", 0) as first:
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(OptionError):
            bind_tcp("127.0.0.1", first.getsockname()[1])
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_file_of_a_dead_server_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    check_unix(path)
    with bind_unix(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        with pytest.raises(OptionError, match="another server listens there"):
            bind_unix(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing/s", "folder does not exist"), ("file", "not a socket"), ("x" * 120, "longer")],
)
def test_paths_that_cannot_be_bound_are_refused(tmp_path, name, message):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OptionError, match=message):
        bind_unix(tmp_path / name)
    assert (tmp_path / "file").read_text() == "precious"


def test_only_the_own_socket_file_is_removed(tmp_path):
    path = tmp_path / "s"
    with bind_unix(path):
        inode = path.stat().st_ino
        remove_unix(path, inode + 1)
        assert path.exists()
        remove_unix(path, inode)
        assert not path.exists()
        remove_unix(path, inode)

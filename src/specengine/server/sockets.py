"""Where the server listens: TCP or a Unix socket, taken cleanly and left cleanly."""

import errno
import os
import socket
import stat
from pathlib import Path

from specengine.errors import OptionError

MAX_SOCKET_PATH = 107
"""Bytes that a Unix socket address holds."""


def bind_tcp(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one.

    Raises:
        OptionError: the address is in use or not this machine's.
    """
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        fix = "stop the other server or choose another port"
        if error.errno != errno.EADDRINUSE:
            fix = "choose an address of this machine and a free port"
        raise OptionError(_reason(error), where=where, fix=fix) from error
    return bound


def check_unix(path: Path) -> None:
    """Refuse a socket path that cannot be bound later, before the model is loaded.

    Raises:
        OptionError: a live server listens there, the path holds something else or is too long, or
            its folder is missing.
    """
    where = str(path)
    if len(os.fsencode(where)) > MAX_SOCKET_PATH:
        raise OptionError(
            f"is longer than {MAX_SOCKET_PATH} bytes", where=where, fix="choose a shorter path"
        )
    if not path.parent.is_dir():
        raise OptionError("its folder does not exist", where=where, fix="create the folder")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise OptionError(_reason(error), where=where, fix="choose another path") from error
    if not stat.S_ISSOCK(mode):
        raise OptionError("exists and is not a socket", where=where, fix="choose another path")
    if _is_live(path):
        raise OptionError(
            "another server listens there", where=where, fix="stop it or choose another path"
        )


def bind_unix(path: Path) -> socket.socket:
    """A bound Unix socket; the file of a dead server is replaced.

    Raises:
        OptionError: see `check_unix`, or the folder cannot be written.
    """
    check_unix(path)
    try:
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(path))
    except OSError as error:
        raise OptionError(
            _reason(error), where=str(path), fix="choose a folder that can be written"
        ) from error
    return bound


def remove_unix(path: Path, bound_inode: int) -> None:
    """Remove the socket file if it is still the one that was bound."""
    if path.exists() and path.stat().st_ino == bound_inode:
        path.unlink()


def _is_live(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            # A full backlog or a refused permission is a sign of life.
            return True
    return True


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()

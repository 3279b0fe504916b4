"""The command: bad starts end with one line, a good one serves until it is told to end."""

import errno
import gc
import http.client
import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from specengine.server.command import main


@pytest.fixture(scope="module")
def target_folder(tiny_model, tiny_tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets") / "tiny-qwen3"
    tiny_model("qwen3").save_pretrained(folder)
    tiny_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


BAD_STARTS = [
    (["--autoregressive"], "--target"),
    (["--target", "missing", "--autoregressive", "--port", "0"], "missing is not a folder"),
    (["--target", "T"], "--drafter: is missing"),
    (["--target", "T", "--drafter", "missing", "--port", "0"], "--drafter: missing"),
    (["--target", "T", "--autoregressive", "--port", "0", "--dtype", "int4"], "dtype: 'int4'"),
    (["--target", "T", "--autoregressive", "--port", "0", "--device", "cuda:99"], "cuda:99"),
    (["--target", "T", "--autoregressive", "--port", "70000"], "70000 is no port"),
    (["--target", "T", "--autoregressive", "--host", "a..b"], "a..b:8000: no host name"),
    (["--target", "T", "--autoregressive", "--threads", "0"], "--threads: 0 is below 1"),
    (["--target", "T", "--autoregressive", "--uds", "/nonexistent/s"], "folder does not exist"),
    (["--target", "T", "--autoregressive", "--system", "missing.toml"], "missing.toml"),
    (["--target", "T", "--autoregressive", "--system", "BAD"], "did you mean 'nodes'?"),
    (["--target", "T", "--autoregressive", "--sampling"], "unrecognized arguments: --sampling"),
    (["--target", "EMPTY", "--autoregressive", "--port", "0"], "EMPTY"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_STARTS, ids=lambda value: str(value)[-40:])
def test_a_bad_start_ends_with_one_line(
    arguments, message, target_folder, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "BAD").write_text("node = 4\n")
    (tmp_path / "T").symlink_to(target_folder)
    assert main(arguments) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    assert message in lines[0]
    assert gc.isenabled()


def test_a_port_in_use_ends_with_one_line(target_folder, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["--target", str(target_folder), "--autoregressive", "--port", port]
        assert main(arguments) == 1
    assert capfd.readouterr().err.count("\n") == 1


def test_a_file_that_may_not_be_read_ends_with_one_line(monkeypatch, capfd):
    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", "/m/model.safetensors")

    monkeypatch.setattr("specengine.server.command.load_options", refused)
    assert main(["--target", "T", "--autoregressive", "--system", "s.toml"]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: /m/model.safetensors: Permission denied; ")


def test_an_interrupted_start_is_no_traceback(monkeypatch, capfd):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("specengine.server.command.load_options", interrupted)
    assert main(["--target", "T", "--autoregressive", "--system", "s.toml"]) == 130
    assert capfd.readouterr().err == "interrupted while loading\n"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("engine")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def _ask(path, url, body=None):
    connection = _UnixConnection(path)
    connection.request("GET" if body is None else "POST", url, body and json.dumps(body))
    return connection.getresponse()


def test_a_process_serves_and_ends_cleanly(target_folder, tmp_path):
    path = tmp_path / "s"
    system = tmp_path / "system.toml"
    system.write_text('tree = "best_first"\n')
    command = [sys.executable, "-m", "specengine.server", "--target", str(target_folder)]
    command += ["--autoregressive", "--uds", str(path), "--threads", "1", "--dtype", "float32"]
    command += ["--system", str(system), "--tree-hash", "f00d"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 300
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)
        health = json.load(_ask(path, "/health"))
        assert health["tree_hash"] == "f00d" and health["options"]["tree"] == "best_first"
        body = {"prompt": [3, 4], "max_tokens": 240, "ignore_eos": True, "stream": True}
        stream = _ask(path, "/v1/completions", {**body, "return_token_ids": True})
        stream.readline()
        process.send_signal(signal.SIGTERM)
        events = [line[6:] for line in stream.read().split(b"\n") if line.startswith(b"data: {")]
        count = sum(len(json.loads(event)["choices"][0]["token_ids"]) for event in events)
        # The first event was read above.
        assert count == 239
        assert process.wait(120) == 0
        assert not path.exists()
    finally:
        process.kill()
        errors = process.communicate()[1]
    assert "ready on" in errors and "rror" not in errors

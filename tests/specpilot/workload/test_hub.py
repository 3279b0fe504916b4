"""Benchmarks and models from a hub that runs here: the real client, answers of the real shape."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from specpilot.core.errors import WorkloadError
from specpilot.workload.hub import read_parquet

REVISION = "a" * 40
READ = """
import sys
from specpilot.core.errors import SpecPilotError
from specpilot.engines.target_folder import model_folder
from specpilot.workload.sources import read_source
import json
try:
    if sys.argv[1] == "model":
        print(json.dumps(sorted(p.name for p in model_folder(sys.argv[2]).iterdir())))
    else:
        print(json.dumps(read_source(sys.argv[1], None)))
except SpecPilotError as error:
    print(error)
"""


class Hub:
    """Repositories by kind and name, each a table of file contents."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def log_message(self, *_: object) -> None:
                return

            def answer(self, body: bool) -> None:
                found = hub.find(self.path.partition("?")[0])
                self.send_response(404 if found is None else 200)
                content = b"{}" if found is None else found
                self.send_header("Content-Length", str(len(content)))
                self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", REVISION)
                if found is None:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                if body:
                    self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def find(self, path: str) -> bytes | None:
        for name, files in self.repositories.items():
            if path in (f"/api/{name}", f"/api/{name}/revision/main"):
                siblings = [{"rfilename": file} for file in files]
                table = {"id": name.partition("/")[2], "sha": REVISION, "siblings": siblings}
                return json.dumps(table).encode()
            if path.startswith(f"/api/{name}/tree/"):
                return json.dumps(
                    [
                        {"type": "file", "path": k, "size": len(v), "oid": "0" * 40}
                        for k, v in files.items()
                    ]
                ).encode()
            start = f"/{name.removeprefix('models/')}/resolve/"
            if path.startswith(start):
                return files.get(path.removeprefix(start).partition("/")[2])
        return None


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub()
    yield found
    found.server.shutdown()
    found.server.server_close()


def ask(hub: Hub, home: Path, *arguments: str) -> str:
    """What a fresh process makes of it: the client reads its endpoint once, at import."""
    address = f"http://127.0.0.1:{hub.server.server_address[1]}"
    ours = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | ours
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_json_lines_come_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    lines = b'{"problem": "2+2?"}\n{"problem": "3+3?"}\n'
    hub.repositories["datasets/HuggingFaceH4/MATH-500"] = {"README.md": b"x", "test.jsonl": lines}
    rows, name = json.loads(ask(hub, tmp_path, "math500"))
    assert [row["problem"] for row in rows] == ["2+2?", "3+3?"]
    assert name == "HuggingFaceH4/MATH-500/test.jsonl"


def test_parquet_comes_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow reads Parquet")
    from pyarrow import parquet

    def file(questions: list[str]) -> bytes:
        parquet.write_table(pyarrow.table({"question": questions}), tmp_path / "file.parquet")
        return (tmp_path / "file.parquet").read_bytes()

    hub.repositories["datasets/openai/gsm8k"] = {
        "main/train-00000-of-00001.parquet": file(["seen"]),
        "main/test-00000-of-00001.parquet": file(["How many?", "How much?"]),
        "socratic/test-00000-of-00001.parquet": file(["other"]),
    }
    rows, name = json.loads(ask(hub, tmp_path / "home", "gsm8k"))
    assert [row["question"] for row in rows] == ["How many?", "How much?"]
    assert name == "openai/gsm8k/main/test-00000-of-00001.parquet"


def test_a_model_comes_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["models/someone/tiny"] = {"config.json": b"{}", "model.safetensors": b"x"}
    assert json.loads(ask(hub, tmp_path, "model", "someone/tiny")) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize("arguments", [("mbpp",), ("model", "someone/absent")])
def test_what_the_hub_lacks_is_one_line(hub: Hub, tmp_path: Path, arguments: tuple[str]) -> None:
    answer = ask(hub, tmp_path, *arguments)
    assert "the hub" in answer
    assert "; " in answer


def test_a_hub_without_readable_files_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["datasets/openai/openai_humaneval"] = {"README.md": b"x"}
    answer = ask(hub, tmp_path, "humaneval")
    assert "openai/openai_humaneval: the hub has no JSON Lines or Parquet file of it" in answer
    assert '{ humaneval = "builtin" }' in answer


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow reads Parquet")
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(WorkloadError, match=r"test\.parquet: cannot be read as Parquet"):
        read_parquet(path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(WorkloadError, match=r"needs pyarrow; pip install 'specpilot\[hub\]'"):
        read_parquet(tmp_path / "test.parquet")

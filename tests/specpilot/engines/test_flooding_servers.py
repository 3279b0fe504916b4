"""A server that fills the host's disk is ended in one line, and its log is cut."""

import asyncio
from pathlib import Path

import pytest
from tiny_engine import STRONGEST, export, make_deployment, make_request

from specpilot.core.errors import EngineFailure
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.embedded_server import MOST_WRITTEN
from specpilot.engines.stock_tree import read_stock_tree

SERVER = """
import argparse, http.server, json, os, pathlib, socketserver, threading, time, tomllib

def flood():
    block = b"x" * 2**20
    for number in range(40):
        FLOOD

class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self):
        return "judge"

    def do_GET(self):
        health = {
            "status": "ready",
            "tree_hash": chosen.tree_hash,
            "package": str(pathlib.Path(__file__).parents[1]),
            "options": tomllib.loads(chosen.system.read_text()),
            "autoregressive": chosen.autoregressive,
        }
        body = json.dumps(health).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        flood()
        time.sleep(20)
        self.send_error(500)

parser = argparse.ArgumentParser()
for name in ("uds", "tree-hash", "system"):
    parser.add_argument(f"--{name}", type=pathlib.Path if name == "system" else str)
parser.add_argument("--autoregressive", action="store_true")
chosen, _ = parser.parse_known_args()
socketserver.ThreadingUnixStreamServer(chosen.uds, Handler).serve_forever()
"""
"""Answers as the engine does while it starts, and floods the disk at its first request."""


@pytest.mark.parametrize(
    ("flood", "name"),
    [
        ("os.write(1, block)", "log"),
        ("open('one', 'ab').write(block)", "socket folder"),
        ("os.makedirs(f'{number}/x'); open(f'{number}/x/y', 'wb').write(block)", "socket folder"),
        ("[open(f'{number}-{i}', 'wb').close() for i in range(1000)]", "socket folder"),
    ],
)
def test_a_server_that_floods_the_disk_is_ended(
    flood: str, name: str, tmp_path: Path, model: Path
) -> None:
    files = dict(read_stock_tree({}))
    files["specengine/server/__main__.py"] = SERVER.replace("FLOOD", flood).encode()
    run = tmp_path / "run"
    checkout = export(files, run / "exports" / "tree")
    adapter = EmbeddedAdapter(make_deployment(model, STRONGEST), run)

    async def play() -> None:
        server = await adapter.launch(checkout, "cpu", threads=1)
        try:
            await server.generate(make_request(1))
        finally:
            await server.stop()

    with pytest.raises(EngineFailure, match=rf"it wrote \d+ MiB into its {name}") as caught:
        asyncio.run(play())

    assert "\n" not in str(caught.value)
    assert all(log.stat().st_size <= MOST_WRITTEN for log in (run / "logs").iterdir())
    assert list((run / "control").iterdir()) == []

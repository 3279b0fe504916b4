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
import os, sys, threading, time
def flood():
    time.sleep(1)
    block = b"x" * 2**20
    for number in range(40):
        FLOOD
threading.Thread(target=flood, daemon=True).start()
from specengine.server.command import main
sys.exit(main())
"""


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
            for number in range(1, 100):
                await server.generate(make_request(number))
                await asyncio.sleep(0.1)
        finally:
            await server.stop()

    with pytest.raises(EngineFailure, match=rf"it wrote \d+ MiB into its {name}") as caught:
        asyncio.run(play())

    assert "\n" not in str(caught.value)
    assert all(log.stat().st_size <= MOST_WRITTEN for log in (run / "logs").iterdir())
    assert list((run / "control").iterdir()) == []

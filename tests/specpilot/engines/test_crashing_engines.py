"""An engine that ends by a defect of its own: the failed request says which, not how it read."""

import asyncio
from pathlib import Path

from tiny_engine import STRONGEST, export, make_deployment, make_request

from specpilot.core.requests import FinishReason, RequestOutcome
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.stock_tree import read_stock_tree

FILE = "specengine/decoding/session.py"
STEP = b"def step(self) -> list[int]:\n"


def test_a_failed_request_names_the_defect_that_ended_the_engine(
    tmp_path: Path, model: Path
) -> None:
    files = dict(read_stock_tree({}))
    assert STEP in files[FILE]
    files[FILE] = files[FILE].replace(STEP, STEP + b"        raise AttributeError('no weight')\n")
    run = tmp_path / "run"
    adapter = EmbeddedAdapter(make_deployment(model, STRONGEST), run)
    checkout = export(files, run / "exports" / "tree")

    async def play() -> RequestOutcome:
        server = await adapter.launch(checkout, "cpu", threads=1)
        try:
            return await server.generate(make_request(1))
        finally:
            await server.stop()

    outcome = asyncio.run(play())

    assert outcome.finish_reason is FinishReason.FAILED
    assert outcome.error is not None
    assert "the server ended with code 1 at that: AttributeError: no weight" in outcome.error

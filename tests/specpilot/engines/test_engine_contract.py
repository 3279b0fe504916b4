"""What every engine promises of freezing; add an engine to the parameters."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tiny_engine import STRONGEST, export, make_deployment, make_request

from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import EngineFailure
from specpilot.core.requests import Request
from specpilot.core.system import Checkout
from specpilot.engines.base import EngineAdapter, RunningEngine
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.simulated import SimulatedAdapter, simulated_requests
from specpilot.engines.stock_tree import read_stock_tree

Subject = tuple[EngineAdapter, Checkout, Request]


@pytest.fixture(params=["simulated", "embedded"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    """An adapter, a system of its engine, and a request for it."""
    if request.param == "simulated":
        adapter = SimulatedAdapter()
        systems = SystemRepository(tmp_path)
        stock = systems.export(systems.commit_stock(adapter.stock_tree()))
        return adapter, stock, simulated_requests(("gsm8k",), 1, 40, seed=0)[0]
    folder = request.getfixturevalue("model")
    checkout = export(read_stock_tree({}), tmp_path / "run" / "exports" / "tree")
    embedded = EmbeddedAdapter(make_deployment(folder, STRONGEST), tmp_path / "run")
    return embedded, checkout, make_request(0)


def serve(subject: Subject, action: Callable[[RunningEngine], Awaitable[None]]) -> None:
    async def play() -> None:
        adapter, checkout, _ = subject
        server = await adapter.launch(checkout, "cpu")
        try:
            await action(server)
        finally:
            await server.stop()
        with pytest.raises(EngineFailure, match=r"cannot be frozen|the server ended"):
            await server.freeze()

    asyncio.run(play())


def test_a_frozen_server_is_not_asked_and_answers_as_before_when_thawed(subject: Subject) -> None:
    request = subject[2]

    async def action(server: RunningEngine) -> None:
        before = await server.generate(request)
        for _ in range(3):
            await server.freeze()
            await server.freeze()
            await asyncio.sleep(0.05)
            await server.thaw()
            await server.thaw()
            again = await server.generate(request)
            assert again.output_token_ids == before.output_token_ids
        await server.freeze()
        for ask in (
            lambda: server.generate(request),
            lambda: server.score((5, 6), (7,)),
            lambda: server.record(request, 4),
            lambda: server.profile(request),
            lambda: server.step_times(request, 4, (8,)),
            server.counters,
            server.flush,
        ):
            with pytest.raises(ValueError, match="frozen"):
                await ask()
        await server.thaw()
        await server.flush()
        assert (await server.counters()).emitted_tokens == 0
        await server.freeze()

    serve(subject, action)

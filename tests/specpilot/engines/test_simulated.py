"""The simulated engine tells the truth that its tree sets, to whoever measures well."""

import asyncio
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from specengine.lattice import Lattice
from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import EngineFailure
from specpilot.core.requests import FinishReason
from specpilot.core.system import Checkout, System
from specpilot.engines.simulated import SimulatedAdapter, SimulatedEngine, simulated_requests

REQUESTS = simulated_requests(("gsm8k",), 40, 200, seed=1)


@pytest.fixture
def systems(tmp_path: Path) -> SystemRepository:
    return SystemRepository(tmp_path)


@pytest.fixture
def stock(systems: SystemRepository) -> System:
    return systems.commit_stock(SimulatedAdapter().stock_tree())


async def launch(checkout: Checkout, adapter: SimulatedAdapter | None = None) -> SimulatedEngine:
    return await (adapter or SimulatedAdapter()).launch(checkout, "cpu")


def rates(checkout: Checkout) -> list[float]:
    async def play() -> list[float]:
        engine = await launch(checkout)
        return [(await engine.generate(r)).tokens_per_second for r in REQUESTS]

    return asyncio.run(play())


def test_options_are_worth_what_the_code_says(systems: SystemRepository, stock: System) -> None:
    fast = systems.with_options(stock, {"tree": "best_first", "linear": "prepacked"})

    logs = [
        math.log(new / old)
        for new, old in zip(rates(systems.export(fast)), rates(systems.export(stock)), strict=True)
    ]

    assert math.exp(fmean(logs)) == pytest.approx(1.25 * 1.08, rel=0.005)


def test_measuring_again_measures_the_same(systems: SystemRepository, stock: System) -> None:
    checkout = systems.export(stock)

    assert rates(checkout) == rates(checkout)


def test_two_servers_of_one_system_differ_by_noise_alone(
    systems: SystemRepository, stock: System
) -> None:
    async def both() -> list[float]:
        adapter = SimulatedAdapter()
        one, two = [await launch(systems.export(stock), adapter) for _ in range(2)]
        return [(await one.generate(r)).seconds / (await two.generate(r)).seconds for r in REQUESTS]

    ratios = asyncio.run(both())
    assert len(set(ratios)) == len(ratios)
    assert fmean(ratios) == pytest.approx(1, abs=0.005)


def test_stock_outputs_are_nearly_the_scorers(systems: SystemRepository, stock: System) -> None:
    async def score() -> list[float]:
        engine = await launch(systems.export(stock))
        margins = []
        for request in REQUESTS:
            outcome = await engine.generate(request)
            assert outcome.finish_reason is FinishReason.STOP
            ids = outcome.output_token_ids
            margins += [s.margin_nats for s in await engine.score(request.prompt_token_ids, ids)]
        return margins

    margins = asyncio.run(score())
    wrong = [margin for margin in margins if margin > 0]
    assert 0 < len(wrong) / len(margins) < 0.015
    assert max(wrong) < 0.125


def test_recordings_hold_valid_lattices_of_the_output(
    systems: SystemRepository, stock: System
) -> None:
    async def record() -> None:
        engine = await launch(systems.export(stock))
        recording = await engine.record(REQUESTS[0], 16)
        assert recording.ids.shape[:2] == (len(recording.tokens) - 1, 16)
        for ids, edge in zip(recording.ids, recording.edge, strict=True):
            lattice = Lattice(ids, edge).check()
            assert np.allclose(np.exp(lattice.edge).sum(axis=2), 1, atol=1e-5)
        hits = (recording.ids[:, 0] == recording.tokens[1:, None]).any(axis=1)
        assert 0.6 < hits.mean() < 1.0

    asyncio.run(record())


def test_broken_source_does_not_start(systems: SystemRepository) -> None:
    files = {**SimulatedAdapter().stock_tree(), "specengine/simulated.toml": b"speed = nan\n"}
    broken = systems.commit_stock(files)

    with pytest.raises(EngineFailure, match="does not start"):
        asyncio.run(launch(systems.export(broken)))

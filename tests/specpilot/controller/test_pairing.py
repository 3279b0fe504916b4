"""Paired runs: the order of play, conservation of outcomes, and servers that lie or stay."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from specpilot.controller.attribution import InfrastructureFailure
from specpilot.controller.outcomes import Tampered, check_outcome
from specpilot.controller.pairing import interleaved, merge_runs, paired
from specpilot.controller.servers import Arena, warm_up_request
from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Isolation, Measurement, PairedRun
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.simulated import SimulatedAdapter, SimulatedEngine, simulated_requests

REQUESTS = simulated_requests(("gsm8k", "mbpp"), 6, 64, seed=0)


class Watching(SimulatedAdapter):
    """Remembers which arm played what, in order."""

    def __init__(self, change: Callable[[SimulatedEngine], None] | None = None) -> None:
        super().__init__()
        self.played: list[tuple[int, str]] = []
        self.devices: list[str] = []
        self.launched = 0
        self._change = change

    async def launch(
        self, checkout: Checkout, device: str, *, threads: int | None = None
    ) -> SimulatedEngine:
        engine = await super().launch(checkout, device, threads=threads)
        number, self.launched = self.launched, self.launched + 1
        self.devices.append(device)
        generate = engine.generate

        async def watched(request: Request) -> RequestOutcome:
            self.played.append((number, request.id))
            return await generate(request)

        engine.generate = watched
        if self._change is not None:
            self._change(engine)
        return engine


async def run_pair(*arguments: Any, **options: Any) -> PairedRun:
    async with paired(*arguments, **options) as (played, _):
        return played


async def run_interleaved(*arguments: Any, **options: Any) -> dict[str, Measurement]:
    async with interleaved(*arguments, **options) as (measured, _):
        return measured


@pytest.fixture
def stock(tmp_path: Path) -> Checkout:
    systems = SystemRepository(tmp_path)
    return systems.export(systems.commit_stock(SimulatedAdapter().stock_tree()))


def arena(adapter: SimulatedAdapter, devices: Sequence[str] = ("cpu",)) -> Arena:
    return Arena(adapter=adapter, devices=tuple(devices), isolation=Isolation.NAMESPACES)


def test_every_request_is_played_in_both_orders(stock: Checkout) -> None:
    adapter = Watching()

    played = asyncio.run(run_pair(arena(adapter), "x", stock, stock, REQUESTS, seed=3))

    timed = [item for item in adapter.played if not item[1].startswith("warm-up")]
    arms = [arm for arm, _ in timed]
    assert arms == [0, 1, 1, 0] * 6 + [3, 2, 2, 3] * 6
    assert all(one == other for (_, one), (_, other) in zip(timed[::2], timed[1::2], strict=True))
    orders = [[request for arm, request in timed if arm == server] for server in range(4)]
    assert orders[0] == orders[1]
    assert orders[2] == orders[3] != orders[0]
    assert played.order == "ABBA"
    assert [len(outcomes) for outcomes in played.candidate.passes] == [12, 12]


def test_one_pass_asks_once_and_alternates_who_begins(stock: Checkout) -> None:
    adapter = Watching()
    once = Arena(adapter, ("cpu",), Isolation.NAMESPACES, passes=1)

    played = asyncio.run(run_pair(once, "x", stock, stock, REQUESTS, seed=3))

    arms = [arm for arm, request in adapter.played if not request.startswith("warm-up")]
    assert arms == [0, 1, 1, 0] * 6
    assert [len(outcomes) for outcomes in played.candidate.passes] == [12]
    assert adapter.launched == 2


def test_a_batch_is_filled_before_the_other_arm_has_its_turn(stock: Checkout) -> None:
    adapter = Watching()
    several = Arena(adapter, ("cpu",), Isolation.NAMESPACES, concurrency=(2,))

    asyncio.run(run_pair(several, "x", stock, stock, REQUESTS, seed=3))

    timed = [arm for arm, request in adapter.played if not request.startswith("warm-up")]
    assert timed == [0] * 8 + [1] * 8 + [1] * 4 + [0] * 4 + [3] * 8 + [2] * 8 + [2] * 4 + [3] * 4


def test_only_one_server_is_awake_while_another_plays(stock: Checkout) -> None:
    awake: list[set[SimulatedEngine]] = []

    def watch(engine: SimulatedEngine) -> None:
        play = engine.generate

        async def generate(request: Request) -> RequestOutcome:
            if not request.id.startswith("warm-up"):
                awake.append({other for other in adapter.alive if not other.frozen} - {engine})
            return await play(request)

        engine.generate = generate

    adapter = Watching(watch)
    arms = dict.fromkeys(("ar", "stock", "best"), stock)

    async def run() -> None:
        async with paired(arena(adapter), "x", stock, stock, REQUESTS, seed=0) as (_, server):
            assert adapter.alive == [server]
            await server.generate(REQUESTS[0])
        async with interleaved(
            arena(adapter), arms, REQUESTS, seed=0, trusted=frozenset({"ar"})
        ) as (_, turns):
            for name in ("best", "stock"):
                async with turns.of(name) as server:
                    await server.generate(REQUESTS[0])

    asyncio.run(run())
    assert len(awake) == 4 * 12 + 1 + 3 * 12 + 2
    assert not any(awake)
    assert adapter.alive == []


def _leaves_when_frozen(engine: SimulatedEngine) -> None:
    async def freeze() -> None:
        raise EngineFailure("its process is gone", where="test", fix="none")

    engine.freeze = freeze


ARMS = pytest.mark.parametrize(
    ("arm", "kind"), [(0, InfrastructureFailure), (1, EngineFailure)], ids=["baseline", "candidate"]
)


@ARMS
def test_a_server_that_cannot_be_frozen_is_its_own_arms_failure(
    arm: int, kind: type[Exception], stock: Checkout
) -> None:
    adapter = Watching(
        lambda engine: _leaves_when_frozen(engine) if adapter.launched == arm + 1 else None
    )

    with pytest.raises(kind, match="its process is gone"):
        asyncio.run(run_pair(arena(adapter), "x", stock, stock, REQUESTS, seed=0))
    assert adapter.alive == []


def test_order_depends_on_the_seed_alone(stock: Checkout) -> None:
    def order(seed: int) -> list[str]:
        run = asyncio.run(run_pair(arena(Watching()), "x", stock, stock, REQUESTS, seed=seed))
        return [outcome.request_id for outcome in run.baseline.passes[0]]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_failing_server_takes_the_other_with_it(stock: Checkout) -> None:
    def fail(engine: SimulatedEngine) -> None:
        if len(adapter.alive) == 2:
            raise EngineFailure("did not become ready", where="test", fix="none")

    adapter = Watching(fail)

    with pytest.raises(EngineFailure, match="did not become ready"):
        asyncio.run(run_pair(arena(adapter), "x", stock, stock, REQUESTS, seed=3))

    assert adapter.launched == 2
    assert len(adapter.alive) <= 1, "the server that was ready is stopped"


def test_two_devices_swap_between_fresh_servers(stock: Checkout) -> None:
    adapter = Watching()

    run = asyncio.run(
        run_pair(arena(adapter, ("cuda:0", "cuda:1")), "x", stock, stock, REQUESTS, seed=0)
    )

    assert adapter.devices == ["cuda:0", "cuda:1", "cuda:1", "cuda:0"]
    assert run.order == "swap"


def test_interleaved_arms_play_the_same_requests(stock: Checkout) -> None:
    ar = stock.model_copy(update={"autoregressive": True})

    arms = asyncio.run(
        run_interleaved(
            arena(Watching()),
            {"ar": ar, "stock": stock},
            REQUESTS,
            seed=0,
            trusted=frozenset({"ar", "stock"}),
        )
    )

    assert arms["ar"].autoregressive
    assert [o.request_id for o in arms["ar"].passes[0]] == [
        o.request_id for o in arms["stock"].passes[0]
    ]
    assert arms["stock"].counters.tau > arms["ar"].counters.tau == 1.0


def _never_flushes(engine: SimulatedEngine) -> None:
    async def flush() -> None:
        return None

    engine.flush = flush


def _answers_twice(engine: SimulatedEngine) -> None:
    generate = engine.generate

    async def wrong(request: Request) -> RequestOutcome:
        outcome = await generate(request)
        return outcome.model_copy(update={"request_id": "gsm8k/0"})

    engine.generate = wrong


def _vanishes(engine: SimulatedEngine) -> None:
    async def gone(request: Request) -> RequestOutcome:
        raise EngineFailure("vanished", where="server", fix="look at its log")

    engine.generate = gone


@ARMS
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_never_flushes, "after a flush"),
        (_answers_twice, "was answered as"),
        (_vanishes, "vanished"),
    ],
)
def test_a_bad_server_ends_the_run_and_no_server_stays(
    change: Callable[[SimulatedEngine], None],
    error: str,
    arm: int,
    kind: type[Exception],
    stock: Checkout,
) -> None:
    adapter = Watching(lambda engine: change(engine) if adapter.launched == arm + 1 else None)

    with pytest.raises(kind, match=error):
        asyncio.run(run_pair(arena(adapter), "x", stock, stock, REQUESTS, seed=0))
    assert adapter.alive == []


def test_cancelling_a_run_leaves_no_server(stock: Checkout) -> None:
    adapter = Watching()

    async def cancel() -> None:
        task = asyncio.create_task(run_pair(arena(adapter), "x", stock, stock, REQUESTS, seed=0))
        while len(adapter.played) < 5:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert adapter.alive == []


OUTCOME = RequestOutcome(
    request_id="gsm8k/1",
    benchmark="gsm8k",
    finish_reason=FinishReason.LENGTH,
    output_token_ids=(5,) * 64,
    seconds=1.0,
)


@pytest.mark.parametrize(
    "change",
    [
        {"output_token_ids": ()},
        {"output_token_ids": (5,) * 65},
        {"output_token_ids": (5,) * 63},
        {"seconds": 0.0},
        {"benchmark": "mbpp"},
    ],
)
def test_impossible_outcomes(change: dict[str, object]) -> None:
    check_outcome(REQUESTS[1], OUTCOME)

    with pytest.raises(Tampered):
        check_outcome(REQUESTS[1], OUTCOME.model_copy(update=change))


def test_merged_runs_keep_every_pass(stock: Checkout) -> None:
    runs = [
        asyncio.run(run_pair(arena(Watching()), "x", stock, stock, REQUESTS, seed=seed))
        for seed in (0, 1)
    ]

    merged = merge_runs("both", runs)

    assert len(merged.candidate.passes) == 4
    assert merged.candidate.counters.steps == sum(r.candidate.counters.steps for r in runs)


@pytest.mark.parametrize("devices", [("cpu",), ("cuda:0", "cuda:1")])
@pytest.mark.parametrize("sizes", [(1,), (2, 1), (1, 2, 4)])
def test_no_process_is_given_a_request_twice(
    sizes: tuple[int, ...], devices: tuple[str, ...], stock: Checkout
) -> None:
    """Else outputs kept over a flush would play the second time at once."""
    adapter = Watching()
    arms = dict.fromkeys(("ar", "stock"), stock)
    several = Arena(adapter, devices, Isolation.NAMESPACES, concurrency=sizes)

    played = asyncio.run(run_pair(several, "x", stock, stock, REQUESTS, seed=0))
    measured = asyncio.run(run_interleaved(several, arms, REQUESTS, seed=0, trusted=frozenset()))

    assert len(adapter.played) == len(set(adapter.played))
    assert adapter.launched == 6 * len(sizes)
    names = {"gsm8k", "mbpp"} if len(sizes) == 1 else {f"mbpp@{size}" for size in sizes}
    for arm in (played.baseline, played.candidate, *measured.values()):
        assert names <= {outcome.benchmark for outcome in arm.passes[0]}
        assert {len(outcomes) for outcomes in arm.passes} == {len(REQUESTS) * len(sizes)}
    assert len(played.candidate.passes) == 2


def test_the_warm_up_gives_no_prompt_away() -> None:
    prompt = warm_up_request(REQUESTS).prompt_token_ids

    tokens = {token for request in REQUESTS for token in request.prompt_token_ids}
    assert set(prompt) <= tokens
    for request in REQUESTS:
        known = request.prompt_token_ids
        assert sum(one == other for one, other in zip(prompt, known, strict=True)) < 3
        assert sum(one == other for one, other in zip(prompt, known[::-1], strict=True)) < 3

"""Paired runs: two systems play the same requests in the same order, on the caller's clock.

One device: two fresh servers live, and every request is played A B in one pass and B A in the
other, so that linear drift cancels. Two devices: both arms play at once, then swap. Every request
has one outcome per pass in both arms; a missing one is an error (paper section 3.2).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from specpilot.controller.servers import (
    Arena,
    StepLog,
    Tampered,
    blocks,
    play,
    provenance,
    serving_all,
    verified_flush,
)
from specpilot.core.measurement import Counters, Measurement, PairedRun, Provenance
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import RunningEngine

BOTH_ORDERS = (0, 1)


@asynccontextmanager
async def paired(
    arena: Arena,
    run_id: str,
    baseline: Checkout,
    candidate: Checkout,
    requests: Sequence[Request],
    *,
    seed: int,
    orders: Sequence[int] = BOTH_ORDERS,
) -> AsyncIterator[tuple[PairedRun, RunningEngine]]:
    """Play both arms; give every outcome, and the baseline's server, which still runs, alone.

    Args:
        seed: orders the requests; recorded through `run_id`'s event.
        orders: one pass each; 0 begins with the baseline, or plays it on the first device, 1 the
            other way round.

    Raises:
        EngineFailure: a server did not start, vanished, or would not flush.
        Tampered: an answer is impossible, such as more tokens than were allowed.
    """
    origin = await provenance(arena, requests)
    order = list(requests)
    random.Random(seed).shuffle(order)
    swaps = len(arena.devices) >= 2
    play_arms = _swapped if swaps else _alternating
    async with play_arms(arena, baseline, candidate, order, orders) as (arms, server):
        played = PairedRun(
            id=run_id,
            order="swap" if swaps else "ABBA",
            baseline=arms[0].measurement("baseline", baseline, origin),
            candidate=arms[1].measurement("candidate", candidate, origin),
        )
        yield played, server


@asynccontextmanager
async def interleaved(
    arena: Arena, arms: dict[str, Checkout], requests: Sequence[Request], *, seed: int
) -> AsyncIterator[tuple[dict[str, Measurement], dict[str, RunningEngine]]]:
    """Several arms on one device, block by block, the order of arms rotating (for AR rates).

    Gives what was measured, and the servers, which still run and are flushed.
    """
    origin = await provenance(arena, requests)
    order = list(requests)
    random.Random(seed).shuffle(order)
    names = list(arms)
    placed = [(arms[name], arena.devices[0]) for name in names]
    async with serving_all(arena, placed, order) as servers:
        played: list[list[RequestOutcome]] = [[] for _ in names]
        steps = [StepLog() for _ in names]
        for number, block in enumerate(blocks(arena, order)):
            for shift in range(len(names)):
                arm = (number + shift) % len(names)
                played[arm].extend(await play(arena, servers[arm], block, steps[arm]))
        measured = {}
        for arm, name in enumerate(names):
            log = _ArmLog()
            await log.add_pass(played[arm], servers[arm], order)
            await verified_flush(servers[arm])
            found = log.measurement(name, arms[name], origin)
            measured[name] = found.model_copy(update={"tau_per_benchmark": steps[arm].taus()})
        yield measured, dict(zip(names, servers, strict=True))


class _ArmLog:
    """Outcomes and counters of one arm."""

    def __init__(self) -> None:
        self.passes: list[tuple[RequestOutcome, ...]] = []
        self.counters: list[Counters] = []

    async def add_pass(
        self, outcomes: list[RequestOutcome], server: RunningEngine, order: Sequence[Request]
    ) -> None:
        by_id = {outcome.request_id: outcome for outcome in outcomes}
        if len(outcomes) % len(order) or set(by_id) != {request.id for request in order}:
            raise Tampered(
                f"gave {len(outcomes)} outcomes for {len(order)} requests",
                where="paired run",
                fix="every request has exactly one outcome per pass",
            )
        self.passes.append(tuple(outcomes))
        self.counters.append(await server.counters())

    def measurement(self, arm: str, checkout: Checkout, origin: Provenance) -> Measurement:
        return Measurement(
            arm=arm,
            system=checkout.system,
            autoregressive=checkout.autoregressive,
            passes=tuple(self.passes),
            counters=_sum_counters(self.counters),
            provenance=origin,
        )


_Arms = tuple[_ArmLog, _ArmLog]


@asynccontextmanager
async def _alternating(
    arena: Arena,
    baseline: Checkout,
    candidate: Checkout,
    order: Sequence[Request],
    orders: Sequence[int],
) -> AsyncIterator[tuple[_Arms, RunningEngine]]:
    logs = (_ArmLog(), _ArmLog())
    placed = [(checkout, arena.devices[0]) for checkout in (baseline, candidate)]
    async with serving_all(arena, placed, order) as servers:
        for number in orders:
            outcomes: tuple[list[RequestOutcome], list[RequestOutcome]] = ([], [])
            for position, block in enumerate(blocks(arena, order)):
                first = (number + position) % 2
                for arm in (first, 1 - first):
                    outcomes[arm].extend(await play(arena, servers[arm], block))
            for arm in (0, 1):
                await logs[arm].add_pass(outcomes[arm], servers[arm], order)
                await verified_flush(servers[arm])
        await servers[1].stop()
        yield logs, servers[0]


@asynccontextmanager
async def _swapped(
    arena: Arena,
    baseline: Checkout,
    candidate: Checkout,
    order: Sequence[Request],
    orders: Sequence[int],
) -> AsyncIterator[tuple[_Arms, RunningEngine]]:
    logs = (_ArmLog(), _ArmLog())
    for number in orders:
        devices = arena.devices[:2] if number == 0 else arena.devices[1::-1]
        placed = list(zip((baseline, candidate), devices, strict=True))
        async with serving_all(arena, placed, order) as servers:
            played = await asyncio.gather(*(play(arena, server, order) for server in servers))
            for arm in (0, 1):
                await logs[arm].add_pass(played[arm], servers[arm], order)
            if number == orders[-1]:
                await verified_flush(servers[0])
                await servers[1].stop()
                yield logs, servers[0]


def _sum_counters(parts: Sequence[Counters]) -> Counters:
    def total(name: str) -> dict[str, float]:
        keys = {key for part in parts for key in getattr(part, name)}
        return {key: sum(getattr(part, name).get(key, 0) for part in parts) for key in sorted(keys)}

    return Counters(
        steps=sum(part.steps for part in parts),
        emitted_tokens=sum(part.emitted_tokens for part in parts),
        drafted_tokens=sum(part.drafted_tokens for part in parts),
        verified_rows=sum(part.verified_rows for part in parts),
        activations={key: int(value) for key, value in total("activations").items()},
        seconds=total("seconds"),
    )


def merge_runs(run_id: str, runs: Sequence[PairedRun]) -> PairedRun:
    """Several paired runs of the same arms over the same requests as one with more passes."""

    def merged(arms: Sequence[Measurement]) -> Measurement:
        return arms[0].model_copy(
            update={
                "passes": tuple(outcomes for arm in arms for outcomes in arm.passes),
                "counters": _sum_counters([arm.counters for arm in arms]),
            }
        )

    return PairedRun(
        id=run_id,
        order=runs[0].order,
        baseline=merged([run.baseline for run in runs]),
        candidate=merged([run.candidate for run in runs]),
    )

"""Paired runs: two systems play the same requests in the same order, on the caller's clock.

One device: two fresh servers live, and requests are played A B and B A in turn, in a second pass
the other way round, so that linear drift cancels; who does not play is frozen. Two devices: both
arms play at once, then swap. Each pass and batch size has servers of its own and an order of its
own, from a secret: no process is given a request twice, so none can answer from memory. Every
request has one outcome per pass in both arms; a missing one is an error (paper section 3.2).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from specpilot.controller.attribution import attributed
from specpilot.controller.outcomes import Tampered
from specpilot.controller.plausible import check_declared, counters_of
from specpilot.controller.servers import (
    Arena,
    Place,
    StepLog,
    blocks,
    labelled,
    play,
    provenance,
    serving_all,
    verified_flush,
)
from specpilot.controller.turns import Turns
from specpilot.core.measurement import Counters, Measurement, PairedRun, Provenance
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import RunningEngine

BOTH_ORDERS = (0, 1)
_ARMS = ("baseline", "candidate")
_BASELINE = frozenset(_ARMS[:1])


@asynccontextmanager
async def paired(
    arena: Arena,
    run_id: str,
    baseline: Checkout,
    candidate: Checkout,
    requests: Sequence[Request],
    *,
    seed: int,
    orders: Sequence[int] | None = None,
) -> AsyncIterator[tuple[PairedRun, RunningEngine]]:
    """Play both arms; give every outcome, and the baseline's server, which still runs, alone.

    Args:
        seed: orders the requests of each pass; nobody who may serve them can know it.
        orders: one pass each; 0 begins with the baseline, or plays it on the first device, 1 the
            other way round. As many as the arena has passes when None.

    Raises:
        EngineFailure: the candidate did not start, vanished, or would not flush.
        Tampered: an answer of it is impossible, such as more tokens than were allowed.
        InfrastructureFailure: the baseline did any of this.
    """
    origin = await provenance(arena, requests)
    swaps = len(arena.devices) >= 2
    play_arms = _swapped if swaps else _alternating
    sittings = _sittings(arena, requests, seed, orders or BOTH_ORDERS[: arena.passes])
    arena.progress.begin(len(_ARMS), len(sittings), len(requests))
    async with play_arms(arena, baseline, candidate, sittings) as (arms, server):
        arena.progress.end()
        played = PairedRun(
            id=run_id,
            order="swap" if swaps else "ABBA",
            baseline=arms[0].measurement("baseline", origin),
            candidate=arms[1].measurement("candidate", origin),
        )
        yield played, server


@asynccontextmanager
async def interleaved(
    arena: Arena,
    arms: dict[str, Checkout],
    requests: Sequence[Request],
    *,
    seed: int,
    trusted: frozenset[str],
) -> AsyncIterator[tuple[dict[str, Measurement], Turns]]:
    """Several arms on one device, block by block, the order of arms rotating (for AR rates).

    Gives what was measured, and the turns of the servers, which still run and are flushed.

    Args:
        trusted: arms that are not under test.

    Raises:
        EngineFailure: an arm under test failed.
        InfrastructureFailure: another one failed.
    """
    origin = await provenance(arena, requests)
    names = list(arms)
    logs = {name: _ArmLog(arms[name]) for name in names}
    steps = {name: StepLog() for name in names}
    places = [Place(arms[name], arena.devices[0], name in trusted) for name in names]
    arena.progress.begin(len(names), len(arena.concurrency), len(requests))
    for sitting in _sittings(arena, requests, seed, (0,)):
        async with serving_all(arena, places, sitting.order) as servers:
            turns = Turns(dict(zip(names, servers, strict=True)), trusted)
            await turns.begin()
            played: dict[str, list[RequestOutcome]] = {name: [] for name in names}
            for number, block in enumerate(blocks(sitting.in_flight, sitting.order)):
                for shift in range(len(names)):
                    name = names[(number + shift) % len(names)]
                    async with turns.of(name) as server:
                        found = await play(server, block, sitting.in_flight, steps[name])
                        played[name].extend(found)
            for name in names:
                async with turns.of(name) as server:
                    await logs[name].add(arena, sitting, played[name], server)
                    await verified_flush(server)
            if not sitting.last:
                continue
            arena.progress.end()
            yield (
                {
                    name: logs[name]
                    .measurement(name, origin)
                    .model_copy(update={"tau_per_benchmark": steps[name].taus()})
                    for name in names
                },
                turns,
            )


@dataclass(frozen=True, slots=True)
class _Sitting:
    """What one set of fresh servers plays.

    Attributes:
        number: 0 or 1, which arm or which device begins.
        in_flight: batch size.
        order: all requests, each once.
        last: whether nothing is played after it.
    """

    number: int
    in_flight: int
    order: tuple[Request, ...]
    last: bool


def _sittings(
    arena: Arena, requests: Sequence[Request], seed: int, orders: Sequence[int]
) -> list[_Sitting]:
    """One per pass and batch size, in the order they are played."""
    sittings = []
    for number in orders:
        for in_flight in arena.concurrency:
            order = list(requests)
            random.Random(f"{seed}/{number}/{in_flight}").shuffle(order)
            last = (number, in_flight) == (orders[-1], arena.concurrency[-1])
            sittings.append(_Sitting(number, in_flight, tuple(order), last))
    return sittings


class _ArmLog:
    """Outcomes and counters of one arm."""

    def __init__(self, checkout: Checkout) -> None:
        self._checkout = checkout
        self.passes: dict[int, list[RequestOutcome]] = {}
        self.counters: list[Counters] = []

    async def add(
        self,
        arena: Arena,
        sitting: _Sitting,
        outcomes: Sequence[RequestOutcome],
        server: RunningEngine,
    ) -> None:
        """Take what one server answered in a sitting.

        Raises:
            Tampered: not one outcome for each request, or counts that no engine has.
        """
        asked = sorted(request.id for request in sitting.order)
        if sorted(outcome.request_id for outcome in outcomes) != asked:
            raise Tampered(
                f"gave {len(outcomes)} outcomes for {len(asked)} requests",
                where="paired run",
                fix="every request has exactly one outcome per pass",
            )
        found = self.passes.setdefault(sitting.number, [])
        found += labelled(arena, sitting.in_flight, outcomes)
        counters = await counters_of(server)
        check_declared(counters, self._checkout)
        self.counters.append(counters)

    def measurement(self, arm: str, origin: Provenance) -> Measurement:
        """Everything that was taken."""
        return Measurement(
            arm=arm,
            system=self._checkout.system,
            autoregressive=self._checkout.autoregressive,
            passes=tuple(map(tuple, self.passes.values())),
            counters=_sum_counters(self.counters),
            provenance=origin,
        )


_Arms = tuple[_ArmLog, _ArmLog]


@asynccontextmanager
async def _alternating(
    arena: Arena, baseline: Checkout, candidate: Checkout, sittings: Sequence[_Sitting]
) -> AsyncIterator[tuple[_Arms, RunningEngine]]:
    logs = (_ArmLog(baseline), _ArmLog(candidate))
    device = arena.devices[0]
    places = [Place(baseline, device, trusted=True), Place(candidate, device)]
    for sitting in sittings:
        async with serving_all(arena, places, sitting.order) as servers:
            turns = Turns(dict(zip(_ARMS, servers, strict=True)), _BASELINE)
            await turns.begin()
            outcomes: tuple[list[RequestOutcome], list[RequestOutcome]] = ([], [])
            for position, block in enumerate(blocks(sitting.in_flight, sitting.order)):
                first = (sitting.number + position) % 2
                for arm in (first, 1 - first):
                    async with turns.of(_ARMS[arm]) as server:
                        outcomes[arm].extend(await play(server, block, sitting.in_flight))
            for arm in (0, 1):
                async with turns.of(_ARMS[arm]) as server:
                    await logs[arm].add(arena, sitting, outcomes[arm], server)
            if not sitting.last:
                continue
            await turns.end("candidate")
            async with turns.of("baseline") as server:
                await verified_flush(server)
            # Awake from here on, and its failures are no longer told apart.
            yield logs, server


@asynccontextmanager
async def _swapped(
    arena: Arena, baseline: Checkout, candidate: Checkout, sittings: Sequence[_Sitting]
) -> AsyncIterator[tuple[_Arms, RunningEngine]]:
    logs = (_ArmLog(baseline), _ArmLog(candidate))
    for sitting in sittings:
        devices = arena.devices[:2] if sitting.number == 0 else arena.devices[1::-1]
        places = [Place(baseline, devices[0], trusted=True), Place(candidate, devices[1])]
        async with serving_all(arena, places, sitting.order) as servers:

            async def one(
                arm: int, servers: list[RunningEngine] = servers, sitting: _Sitting = sitting
            ) -> None:
                with attributed(trusted=arm == 0):
                    outcomes = await play(servers[arm], sitting.order, sitting.in_flight)
                    await logs[arm].add(arena, sitting, outcomes, servers[arm])

            await asyncio.gather(one(0), one(1))
            if sitting.last:
                await servers[1].stop()
                with attributed(trusted=True):
                    await verified_flush(servers[0])
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

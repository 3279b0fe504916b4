"""Paired runs: two systems play the same requests in the same order, on the caller's clock.

One device: two fresh servers live, and every block is played A B in one pass and B A in the other,
so that linear drift cancels. Two devices: both arms play at once, then swap. Servers are warmed up
on a prompt of their own and flushed before anything counts, and the flush is verified. A failed
request is an outcome; a missing or impossible one is an error (paper section 3.2).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Counters, Isolation, Measurement, PairedRun, Provenance
from specpilot.core.record import content_hash
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import EngineAdapter, RunningEngine

CLIENT_VERSION = "specpilot-client/1"
_BLOCK_REQUESTS = 5
_WARM_UP_TOKENS = 16


class Tampered(EngineFailure):
    """A server answered what no honest server can answer."""


@dataclass(frozen=True, slots=True)
class Arena:
    """Where and how runs are played.

    Attributes:
        devices: leased devices; one alternates, two are swapped.
        concurrency: requests in flight, one entry per batch size.
        threads: CPU threads of one server; None leaves it to the engine.
    """

    adapter: EngineAdapter
    devices: tuple[str, ...]
    isolation: Isolation
    concurrency: tuple[int, ...] = (1,)
    threads: int | None = None


async def run_pair(
    arena: Arena,
    run_id: str,
    baseline: Checkout,
    candidate: Checkout,
    requests: Sequence[Request],
    *,
    seed: int,
) -> PairedRun:
    """Play both arms and return every outcome.

    Args:
        seed: orders the requests; recorded through `run_id`'s event.

    Raises:
        EngineFailure: a server did not start, vanished, or would not flush.
        Tampered: an answer is impossible, such as more tokens than were allowed.
    """
    provenance = await _provenance(arena, requests)
    order = list(requests)
    random.Random(seed).shuffle(order)
    if len(arena.devices) >= 2:
        arms = await _swapped(arena, baseline, candidate, order)
        name = "swap"
    else:
        arms = await _alternating(arena, baseline, candidate, order)
        name = "ABBA"
    return PairedRun(
        id=run_id,
        order=name,
        baseline=arms[0].measurement("baseline", baseline, provenance),
        candidate=arms[1].measurement("candidate", candidate, provenance),
    )


async def run_interleaved(
    arena: Arena, arms: dict[str, Checkout], requests: Sequence[Request], *, seed: int
) -> dict[str, Measurement]:
    """Several arms on one device, block by block, the order of arms rotating (for AR rates)."""
    provenance = await _provenance(arena, requests)
    order = list(requests)
    random.Random(seed).shuffle(order)
    names = list(arms)
    logs = [_ArmLog() for _ in names]
    servers: list[RunningEngine] = []
    try:
        for name in names:
            servers.append(await _ready(arena, arms[name], arena.devices[0], order))
        log: list[list[RequestOutcome]] = [[] for _ in names]
        for number, block in enumerate(_blocks(order)):
            for shift in range(len(names)):
                arm = (number + shift) % len(names)
                log[arm].extend(await _play(arena, servers[arm], block))
        for arm, outcomes in enumerate(log):
            await logs[arm].add_pass(outcomes, servers[arm], order)
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
    return {
        name: logs[arm].measurement(name, arms[name], provenance) for arm, name in enumerate(names)
    }


@asynccontextmanager
async def serving(
    arena: Arena, checkout: Checkout, requests: Sequence[Request]
) -> AsyncIterator[RunningEngine]:
    """One warm, flushed server; gone when the block is left, however it is left."""
    server = await _ready(arena, checkout, arena.devices[0], requests)
    try:
        yield server
    finally:
        await server.stop()


async def play_once(server: RunningEngine, request: Request) -> RequestOutcome:
    """One outcome, checked for what no honest server can answer."""
    outcome = await server.generate(request)
    check_outcome(request, outcome)
    return outcome


def check_outcome(request: Request, outcome: RequestOutcome) -> None:
    """Refuse impossible answers.

    Raises:
        Tampered: another request's id, no token, more tokens than allowed, or an end at the limit
            before the limit. An early stop token is possible; the scorer judges it.
    """
    if (outcome.request_id, outcome.benchmark) != (request.id, request.benchmark):
        raise _tampered(request, f"was answered as {outcome.request_id}")
    if outcome.finish_reason is FinishReason.FAILED:
        return
    count = len(outcome.output_token_ids)
    if not 1 <= count <= request.max_new_tokens:
        raise _tampered(request, f"got {count} tokens of {request.max_new_tokens}")
    if outcome.finish_reason is FinishReason.LENGTH and count < request.max_new_tokens:
        raise _tampered(request, f"ended at the limit after {count} of {request.max_new_tokens}")
    if outcome.seconds <= 0:
        raise _tampered(request, "took no time")


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

    def measurement(self, arm: str, checkout: Checkout, provenance: Provenance) -> Measurement:
        return Measurement(
            arm=arm,
            system=checkout.system,
            autoregressive=checkout.autoregressive,
            passes=tuple(self.passes),
            counters=_sum_counters(self.counters),
            provenance=provenance,
        )


async def _alternating(
    arena: Arena, baseline: Checkout, candidate: Checkout, order: Sequence[Request]
) -> tuple[_ArmLog, _ArmLog]:
    logs = (_ArmLog(), _ArmLog())
    servers: list[RunningEngine] = []
    try:
        for checkout in (baseline, candidate):
            servers.append(await _ready(arena, checkout, arena.devices[0], order))
        for number in range(2):
            outcomes: tuple[list[RequestOutcome], list[RequestOutcome]] = ([], [])
            for position, block in enumerate(_blocks(order)):
                first = (number + position) % 2
                for arm in (first, 1 - first):
                    outcomes[arm].extend(await _play(arena, servers[arm], block))
            for arm in (0, 1):
                await logs[arm].add_pass(outcomes[arm], servers[arm], order)
                await _verified_flush(servers[arm])
    finally:
        await asyncio.gather(*(server.stop() for server in servers))
    return logs


async def _swapped(
    arena: Arena, baseline: Checkout, candidate: Checkout, order: Sequence[Request]
) -> tuple[_ArmLog, _ArmLog]:
    logs = (_ArmLog(), _ArmLog())
    for devices in (arena.devices[:2], arena.devices[1::-1]):
        servers: list[RunningEngine] = []
        try:
            for checkout, device in zip((baseline, candidate), devices, strict=True):
                servers.append(await _ready(arena, checkout, device, order))
            played = await asyncio.gather(*(_play(arena, server, order) for server in servers))
            for arm in (0, 1):
                await logs[arm].add_pass(played[arm], servers[arm], order)
        finally:
            await asyncio.gather(*(server.stop() for server in servers))
    return logs


async def _ready(
    arena: Arena, checkout: Checkout, device: str, requests: Sequence[Request]
) -> RunningEngine:
    server = await arena.adapter.launch(checkout, device, threads=arena.threads)
    try:
        first = requests[0]
        # A prompt that no measured request has, so that warming up fills no useful cache.
        warm = first.model_copy(
            update={
                "id": "warm-up/0",
                "prompt_token_ids": first.prompt_token_ids[::-1],
                "max_new_tokens": min(_WARM_UP_TOKENS, first.max_new_tokens),
            }
        )
        await server.generate(warm)
        await _verified_flush(server)
    except BaseException:
        await server.stop()
        raise
    return server


async def _verified_flush(server: RunningEngine) -> None:
    await server.flush()
    after = await server.counters()
    if after.steps or after.emitted_tokens:
        raise EngineFailure(
            f"still counts {after.emitted_tokens} tokens after a flush",
            where="server under test",
            fix="flush must empty caches and counters",
        )


async def _play(
    arena: Arena, server: RunningEngine, block: Sequence[Request]
) -> list[RequestOutcome]:
    """Closed loop at every batch size; the batch size is part of the benchmark's name."""
    outcomes = []
    for size in arena.concurrency:
        slots = asyncio.Semaphore(size)

        async def one(request: Request, slots: asyncio.Semaphore = slots) -> RequestOutcome:
            async with slots:
                return await play_once(server, request)

        played = await asyncio.gather(*(one(request) for request in block))
        if len(arena.concurrency) > 1:
            played = [_labelled(outcome, size) for outcome in played]
        outcomes.extend(played)
    return outcomes


def _labelled(outcome: RequestOutcome, size: int) -> RequestOutcome:
    return outcome.model_copy(update={"benchmark": f"{outcome.benchmark}@{size}"})


def _blocks(order: Sequence[Request]) -> list[Sequence[Request]]:
    return [order[i : i + _BLOCK_REQUESTS] for i in range(0, len(order), _BLOCK_REQUESTS)]


async def _provenance(arena: Arena, requests: Sequence[Request]) -> Provenance:
    identity = await arena.adapter.identity()
    states = [await arena.adapter.device_state(device) for device in arena.devices]
    return Provenance(
        model_hash=identity.model_hash,
        drafter_hash=identity.drafter_hash,
        tokenizer_hash=identity.tokenizer_hash,
        request_set_hash=request_set_hash(requests),
        devices=tuple(states),
        isolation=arena.isolation,
        cache_policy="warmed up on another prompt, flushed and verified before each pass",
        client_version=CLIENT_VERSION,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def request_set_hash(requests: Sequence[Request]) -> str:
    """Hash of a set of requests, whatever their order."""
    return content_hash([item.to_json() for item in sorted(requests, key=lambda r: r.id)])


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


def _tampered(request: Request, what: str) -> Tampered:
    return Tampered(what, where=f"request {request.id}", fix="the server under test is refused")

"""Servers under test: started fresh, warmed up, flushed, played, and gone at the end.

A server is warmed up on a prompt of its own and flushed before anything counts, and the flush is
verified. It is the server's own code, though: what it keeps over a flush is worth nothing only
because no process is given a request twice. A failed request is an outcome; an impossible answer
is an error.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from specpilot.controller.attribution import attributed
from specpilot.controller.outcomes import check_outcome
from specpilot.controller.plausible import counters_of
from specpilot.controller.progress import WARM_UP_ID, Progress
from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Isolation, Provenance
from specpilot.core.record import content_hash
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import EngineAdapter, RunningEngine

CLIENT_VERSION = "specpilot-client/1"
_TURNS_IN_FLIGHT = 4
"""Requests per place in flight that one arm plays before the other has its turn: fewer would
measure mostly the filling and emptying of a batch."""
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Arena:
    """Where and how runs are played.

    Attributes:
        devices: leased devices; one alternates, two are swapped.
        concurrency: requests in flight, one entry per batch size.
        threads: CPU threads of one server; None leaves it to the engine.
        passes: how often an arm plays each request; two devices need two, to be swapped.
        progress: hears which run is played; its servers tell it the rest.
    """

    adapter: EngineAdapter
    devices: tuple[str, ...]
    isolation: Isolation
    concurrency: tuple[int, ...] = (1,)
    threads: int | None = None
    passes: int = 2
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class Place:
    """What is started where.

    Attributes:
        trusted: not under test; its failures are none of a candidate's.
    """

    checkout: Checkout
    device: str
    trusted: bool = False


@asynccontextmanager
async def serving(
    arena: Arena, checkout: Checkout, requests: Sequence[Request]
) -> AsyncIterator[RunningEngine]:
    """One warm, flushed server; gone when the block is left, however it is left."""
    async with serving_all(arena, [Place(checkout, arena.devices[0])], requests) as servers:
        yield servers[0]


async def play_once(server: RunningEngine, request: Request) -> RequestOutcome:
    """One outcome, checked for what no honest server can answer."""
    outcome = await server.generate(request)
    check_outcome(request, outcome)
    return outcome


@asynccontextmanager
async def serving_all(
    arena: Arena, places: Sequence[Place], requests: Sequence[Request]
) -> AsyncIterator[list[RunningEngine]]:
    """Several servers on their devices, started at once; all gone when the block is left.

    Raises:
        EngineFailure: the first one that did not start; the others are stopped.
        InfrastructureFailure: the same of a server that is not under test.
    """
    turn = asyncio.Lock()
    async with AsyncExitStack() as running:

        async def ready(place: Place) -> RunningEngine:
            with attributed(place.trusted):
                server = await arena.adapter.launch(
                    place.checkout, place.device, threads=arena.threads
                )
                running.push_async_callback(server.stop)
                async with turn:
                    await _warm_up(server, requests)
            return server

        started = await asyncio.gather(*map(ready, places), return_exceptions=True)
        failures = [found for found in started if isinstance(found, BaseException)]
        if failures:
            raise failures[0]
        yield [found for found in started if not isinstance(found, BaseException)]


async def _warm_up(server: RunningEngine, requests: Sequence[Request]) -> None:
    """Play a prompt that no measured request has, and flush.

    Raises:
        EngineFailure: the request failed, or the flush is not confirmed.
    """
    outcome = await server.generate(warm_up_request(requests))
    if outcome.finish_reason is FinishReason.FAILED:
        raise EngineFailure(
            f"the warm-up failed ({outcome.error})",
            where="server under test",
            fix="read its log in the run folder",
        )
    await verified_flush(server)


def warm_up_request(requests: Sequence[Request]) -> Request:
    """Tokens drawn from all prompts: a prompt turned round would give one of them away, to be
    answered before its time is taken."""
    tokens = sorted({token for request in requests for token in request.prompt_token_ids})
    generator = random.Random(content_hash([tokens]))
    first = requests[0]
    return first.model_copy(
        update={
            "id": WARM_UP_ID,
            "prompt_token_ids": tuple(generator.choices(tokens, k=len(first.prompt_token_ids))),
            "max_new_tokens": min(_WARM_UP_TOKENS, first.max_new_tokens),
        }
    )


async def verified_flush(server: RunningEngine) -> None:
    """Flush, and look whether it happened.

    Raises:
        EngineFailure: the server still counts what came before.
    """
    await server.flush()
    after = await counters_of(server)
    if after.steps or after.emitted_tokens:
        raise EngineFailure(
            f"still counts {after.emitted_tokens} tokens after a flush",
            where="server under test",
            fix="flush must empty caches and counters",
        )


class StepLog:
    """Steps and tokens of each benchmark, from the engine's counts around each request."""

    def __init__(self) -> None:
        self._before = (0, 0)
        self._totals: dict[str, tuple[int, int]] = {}

    async def add(self, benchmark: str, server: RunningEngine) -> None:
        """Count what happened since the last call for this benchmark."""
        counters = await counters_of(server)
        now = (counters.steps, counters.emitted_tokens)
        steps, tokens = self._totals.get(benchmark, (0, 0))
        self._totals[benchmark] = (
            steps + now[0] - self._before[0],
            tokens + now[1] - self._before[1],
        )
        self._before = now

    def taus(self) -> dict[str, float]:
        """Tokens per step; benchmarks without a step are left out."""
        return {
            name: max(tokens / steps, 0.0)
            for name, (steps, tokens) in sorted(self._totals.items())
            if steps > 0
        }


async def play(
    server: RunningEngine,
    block: Sequence[Request],
    in_flight: int,
    steps: StepLog | None = None,
) -> list[RequestOutcome]:
    """Closed loop of one batch size.

    Args:
        steps: filled where requests are played one at a time.
    """
    slots = asyncio.Semaphore(in_flight)

    async def one(request: Request) -> RequestOutcome:
        async with slots:
            outcome = await play_once(server, request)
            if steps is not None and in_flight == 1:
                await steps.add(request.benchmark, server)
            return outcome

    return list(await asyncio.gather(*map(one, block)))


def labelled(
    arena: Arena, in_flight: int, outcomes: Sequence[RequestOutcome]
) -> list[RequestOutcome]:
    """With several batch sizes, the size is part of the benchmark's name."""
    if len(arena.concurrency) == 1:
        return list(outcomes)
    return [
        outcome.model_copy(update={"benchmark": f"{outcome.benchmark}@{in_flight}"})
        for outcome in outcomes
    ]


def blocks(in_flight: int, order: Sequence[Request]) -> list[Sequence[Request]]:
    """What one arm plays before the other has its turn.

    One request where requests are played one at a time: the shorter the turns, the less of the
    machine's drift falls between the arms.
    """
    size = 1 if in_flight == 1 else _TURNS_IN_FLIGHT * in_flight
    return [order[i : i + size] for i in range(0, len(order), size)]


async def provenance(arena: Arena, requests: Sequence[Request]) -> Provenance:
    """Hashes and device states right before a run."""
    identity = await arena.adapter.identity()
    states = [await arena.adapter.device_state(device) for device in arena.devices]
    return Provenance(
        model_hash=identity.model_hash,
        drafter_hash=identity.drafter_hash,
        tokenizer_hash=identity.tokenizer_hash,
        request_set_hash=request_set_hash(requests),
        devices=tuple(states),
        isolation=arena.isolation,
        cache_policy="a fresh server for each pass and batch size, warmed up on another prompt",
        client_version=CLIENT_VERSION,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def request_set_hash(requests: Sequence[Request]) -> str:
    """Hash of a set of requests, whatever their order."""
    return content_hash([item.to_json() for item in sorted(requests, key=lambda r: r.id)])

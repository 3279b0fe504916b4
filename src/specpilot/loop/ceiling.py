"""Phase 0 of every round: recordings, profile and step times of the system it starts from.

A server that fails is started once more, since that may be an accident. Failing twice, stock ends
the run with an error that `resume` repeats. A promoted system stays promoted: nothing that it was
promoted for is measured here, so the round plans with the ceiling that is known.
"""

import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from specpilot.controller.plausible import counters_of, profile_of, step_times_of
from specpilot.controller.servers import play_once, serving
from specpilot.controller.short_runs import few_requests
from specpilot.core.errors import EngineFailure
from specpilot.core.requests import Request
from specpilot.core.system import System
from specpilot.engines.base import Recording, RunningEngine
from specpilot.loop.events import CeilingMeasured, Noticed, RecordRef
from specpilot.loop.facts import CeilingFacts
from specpilot.loop.run import CeilingInputs, Run
from specpilot.sandbox.foreign import one_line

NODE_BUDGETS = (8, 16, 32, 48, 64)
"""Verified rows whose step time is measured."""
POSITIONS = 16
_TOKENS = 128
_PROFILED = 2
_STEP_TIMED = 2
"""Requests that are profiled, and whose tree steps are timed: a step's time depends little on the
request, and profiling is slow."""


async def measure_round_ceiling(run: Run, number: int) -> None:
    """Factors of the round's starting system; the end of the round before may have them."""
    known = [
        item.finished.ceiling_after
        for item in run.state.rounds
        if item.finished is not None
        and item.finished.best == run.best
        and item.finished.ceiling_after is not None
    ]
    started = time.monotonic()
    system, name = run.best, f"ceiling-{number}"
    if known:
        facts, record = known[-1], run.save(name, known[-1].to_json())
    else:
        try:
            facts, record = await measure_ceiling(run, system, name)
        except EngineFailure as error:
            before = [item.ceiling for item in run.state.rounds if item.ceiling is not None]
            if not before:
                raise
            system, facts = before[-1].system, before[-1].ceiling
            record = run.save(name, facts.to_json())
            run.emit(
                Noticed(
                    message=f"round {number} plans with the ceiling of "
                    f"{system.tree_hash[:12]}, its own has none: {error}"
                )
            )
    run.emit(
        CeilingMeasured(
            round=number,
            system=system,
            ceiling=facts,
            record=record,
            device_seconds=time.monotonic() - started,
        )
    )


async def measure_ceiling(run: Run, system: System, name: str) -> tuple[CeilingFacts, RecordRef]:
    """Record, profile and time a system, and compute its ceiling.

    Raises:
        EngineFailure: it failed twice, or answered what no ceiling can be computed from.
    """
    try:
        return await _measure(run, system, name, last=False)
    except EngineFailure as error:
        run.emit(Noticed(message=f"{name} is measured again on a fresh server: {error}"))
    return await _measure(run, system, name, last=True)


async def _measure(
    run: Run, system: System, name: str, *, last: bool
) -> tuple[CeilingFacts, RecordRef]:
    stock = run.state.stock_facts
    if stock is None:
        raise ValueError("stock is characterised before any ceiling")
    devices = run.leases.pick(1)
    requests = few_requests(run.development, _TOKENS)
    async with run.leases.hold(devices, name, "ceiling"):
        arena = run.arena(devices)
        async with serving(arena, run.systems.export(system), requests) as server:
            for request in requests:
                await play_once(server, request)
            played = await counters_of(server)
            recordings = [await server.record(request, POSITIONS) for request in requests]
            profiles = [await profile_of(server, request) for request in requests[:_PROFILED]]
            try:
                step_seconds = await _step_seconds(server, system, requests[:_STEP_TIMED])
            except EngineFailure as error:
                if not last:
                    raise
                run.emit(Noticed(message=f"no step times of trees: {error}"))
                step_seconds = {}
        inputs = CeilingInputs(
            recordings=tuple(recordings),
            profiles=tuple(profiles),
            tau=played.tau,
            rows=max(played.verified_rows / max(played.steps, 1), 1.0),
            positions=int(system.options.get("positions", 0)),
            autoregressive_seconds=stock.autoregressive_seconds,
            step_seconds=step_seconds,
            device=devices[0],
            prompt_tokens=fmean(len(item.prompt_token_ids) for item in requests[:_PROFILED]),
        )
    _save_recordings(run, name, recordings)
    facts = _compute(run, inputs)
    return facts, run.save(
        name,
        {
            "ceiling": facts.to_json(),
            "profiles": [profile.to_json() for profile in profiles],
            "step_seconds": {str(rows): value for rows, value in inputs.step_seconds.items()},
        },
    )


async def _step_seconds(
    server: RunningEngine, system: System, requests: Sequence[Request]
) -> dict[int, float]:
    """What a step costs at each node budget; empty where the engine has no such trees."""
    if not {"tree", "nodes"} <= system.options.keys():
        return {}
    times = [await step_times_of(server, item, POSITIONS, NODE_BUDGETS) for item in requests]
    return {nodes: fmean(item[nodes] for item in times) for nodes in NODE_BUDGETS}


def _compute(run: Run, inputs: CeilingInputs) -> CeilingFacts:
    try:
        return run.parts.compute_ceiling(inputs)
    except (ArithmeticError, LookupError, ValueError) as error:
        # A server may answer well-formed numbers that fit nothing, such as no step at all.
        raise EngineFailure(
            f"answers from which no ceiling follows ({one_line(str(error))})",
            where="/record, /profile and /counters",
            fix="see the server's log",
        ) from error


def _save_recordings(run: Run, name: str, recordings: Sequence[Recording]) -> None:
    folder = run.folder / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        f"{index}.{field}": np.asarray(getattr(recording, field))
        for index, recording in enumerate(recordings)
        for field in ("request_id", "tokens", "ids", "edge")
    }
    np.savez_compressed(folder / f"{name}.npz", **arrays)

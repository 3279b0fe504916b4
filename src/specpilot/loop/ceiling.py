"""Phase 0 of every round: recordings, profile and step times of the system it starts from."""

import time
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from specpilot.controller.headroom import few_requests
from specpilot.controller.servers import play_once, serving
from specpilot.core.errors import EngineFailure
from specpilot.core.requests import Request
from specpilot.core.system import System
from specpilot.engines.base import Recording, RunningEngine
from specpilot.loop.events import CeilingMeasured, Noticed, RecordRef
from specpilot.loop.facts import CeilingFacts
from specpilot.loop.run import CeilingInputs, Run

NODE_BUDGETS = (8, 16, 32, 48, 64)
"""Verified rows whose step time is measured."""
POSITIONS = 16
_TOKENS = 128
_PROFILED = 3
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
    if known:
        facts, record = known[-1], run.save(f"ceiling-{number}", known[-1].to_json())
    else:
        facts, record = await measure_ceiling(run, run.best, f"ceiling-{number}")
    run.emit(
        CeilingMeasured(
            round=number,
            system=run.best,
            ceiling=facts,
            record=record,
            device_seconds=time.monotonic() - started,
        )
    )


async def measure_ceiling(run: Run, system: System, name: str) -> tuple[CeilingFacts, RecordRef]:
    """Record, profile and time a system, and compute its ceiling."""
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
            tau = (await server.counters()).tau
            recordings = [await server.record(request, POSITIONS) for request in requests]
            profiles = [await server.profile(request) for request in requests[:_PROFILED]]
            step_seconds = await _step_seconds(run, server, system, requests[:_STEP_TIMED])
        inputs = CeilingInputs(
            recordings=tuple(recordings),
            profiles=tuple(profiles),
            tau=tau,
            autoregressive_seconds=stock.autoregressive_seconds,
            step_seconds=step_seconds,
            device=devices[0],
            prompt_tokens=fmean(len(item.prompt_token_ids) for item in requests[:_PROFILED]),
        )
    _save_recordings(run, name, recordings)
    facts = run.parts.compute_ceiling(inputs)
    return facts, run.save(
        name,
        {
            "ceiling": facts.to_json(),
            "profiles": [profile.to_json() for profile in profiles],
            "step_seconds": {str(rows): value for rows, value in inputs.step_seconds.items()},
        },
    )


async def _step_seconds(
    run: Run, server: RunningEngine, system: System, requests: Sequence[Request]
) -> dict[int, float]:
    """What a step costs at each node budget; empty where the engine has no such trees."""
    if not {"tree", "nodes"} <= system.options.keys():
        return {}
    try:
        times = [await server.step_times(item, POSITIONS, NODE_BUDGETS) for item in requests]
    except EngineFailure as error:
        run.emit(Noticed(message=f"no step times of trees: {error}"))
        return {}
    return {nodes: fmean(item[nodes] for item in times) for nodes in NODE_BUDGETS}


def _save_recordings(run: Run, name: str, recordings: Sequence[Recording]) -> None:
    folder = run.folder / "recordings"
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{index}.{field}": getattr(recording, field)
        for index, recording in enumerate(recordings)
        for field in ("tokens", "ids", "edge")
    }
    np.savez_compressed(folder / f"{name}.npz", **arrays)

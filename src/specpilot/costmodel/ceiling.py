"""The ceiling of a starting system and its three factors (paper section 3.1, Eq. 3 and 4)."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from specengine.trees import BestFirst
from specpilot.core.measurement import KernelClass, Profile
from specpilot.costmodel.replay import check_recording, mean_tau, replay_chain
from specpilot.costmodel.replay_best_first import best_first_replays
from specpilot.costmodel.replay_fit import best_temperature, walks_by_temperature
from specpilot.engines.base import Recording
from specpilot.loop.facts import CeilingFacts, Factor

BUDGETS = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Node budgets of the replayed curve."""


def tau_curve(
    recordings: Sequence[Recording], positions: int
) -> tuple[dict[int, float], dict[int, float]]:
    """tau(N) of the best-first tree and of the chain, over all steps of the recordings.

    Raises:
        WorkloadError: a recording is damaged.
    """
    checked = [check_recording(item) for item in recordings]
    tree = best_first_curve(checked, positions, BestFirst())
    chain = {
        nodes: mean_tau([replay_chain(item, nodes - 1) for item in recordings])
        for nodes in BUDGETS
        if nodes - 1 <= positions
    }
    return tree, chain


def best_first_curve(
    recordings: Sequence[Recording], positions: int, builder: BestFirst
) -> dict[int, float]:
    """tau(N) of best-first trees of checked recordings."""
    replays = best_first_replays(recordings, positions, max(BUDGETS), builder)
    return {nodes: mean_tau([replay.at(nodes) for replay in replays]) for nodes in BUDGETS}


def tempered_curve(
    recordings: Sequence[Recording], positions: int, nodes: int, tau: float
) -> tuple[float, dict[int, float]]:
    """The temperature that suits these requests, and tau(N) at it; 1 and nothing where none helps.

    Args:
        nodes: budget that it is chosen for.
        tau: of the plain best-first tree there.
    """
    temperature = best_temperature(walks_by_temperature(recordings, [nodes], positions))
    if temperature == 1.0:
        return 1.0, {}
    curve = best_first_curve(recordings, positions, BestFirst(temperature))
    return (temperature, curve) if curve[nodes] > tau else (1.0, {})


def step_cost(step_seconds: Mapping[int, float], fallback_seconds: float, nodes: int) -> float:
    """Seconds per step at a node budget: linear between measured budgets, and beyond the last
    by the slope of the last two; the profiled step where nothing was measured."""
    if not step_seconds:
        return fallback_seconds
    known = sorted(step_seconds)
    values = [step_seconds[rows] for rows in known]
    if nodes > known[-1] and len(known) > 1:
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
        return values[-1] + max(slope, 0.0) * (nodes - known[-1])
    return float(np.interp(nodes, known, values))


def ceiling_facts(
    *,
    recordings: Sequence[Recording],
    profiles: Sequence[Profile],
    tau: float,
    autoregressive_seconds: float,
    step_seconds: Mapping[int, float],
    floors: Mapping[KernelClass, float],
) -> CeilingFacts:
    """Compute the factors and name the largest.

    Args:
        recordings: lattices and greedy outputs; all with the same number of positions.
        profiles: profiled requests of the starting system.
        tau: tokens per step of the starting system, as played.
        autoregressive_seconds: T_AR.
        step_seconds: verified rows -> seconds per step with a best-first tree.
        floors: seconds per step and class at the floor.
    """
    positions = min(int(item.ids.shape[1]) for item in recordings)
    tree, chain = tau_curve(recordings, positions)
    step = fmean(profile.seconds_per_step for profile in profiles)
    by_class = {
        name: fmean(profile.by_class.get(name, 0.0) for profile in profiles) for name in KernelClass
    }
    profiled, floor = sum(by_class.values()), sum(floors.values())
    costs = {nodes: step_cost(step_seconds, step, nodes) for nodes in tree}
    speedup = {
        nodes: value * autoregressive_seconds / costs[nodes] for nodes, value in tree.items()
    }
    best = max(speedup, key=lambda nodes: speedup[nodes])
    temperature, tempered = tempered_curve(recordings, positions, best, tree[best])
    factors = {
        Factor.TAU: tree[best] / tau,
        Factor.KERNEL: profiled / floor,
        Factor.OVERHEAD: step / profiled,
    }
    return CeilingFacts(
        tau_factor=factors[Factor.TAU],
        kernel_factor=factors[Factor.KERNEL],
        overhead_factor=factors[Factor.OVERHEAD],
        ceiling=factors[Factor.TAU] * factors[Factor.KERNEL] * factors[Factor.OVERHEAD],
        largest=max(factors, key=lambda factor: factors[factor]),
        tau=tau,
        tau_best=tree[best],
        best_nodes=best,
        seconds_per_step=step,
        profiled_seconds=profiled,
        floor_seconds=floor,
        autoregressive_seconds=autoregressive_seconds,
        by_class=by_class,
        floor_by_class=dict(floors),
        curve=tuple((nodes, value, speedup[nodes]) for nodes, value in tree.items()),
        chain_curve=tuple(chain.items()),
        tree_temperature=temperature,
        tempered_curve=tuple(
            (nodes, value, value * autoregressive_seconds / costs[nodes])
            for nodes, value in tempered.items()
        ),
    )

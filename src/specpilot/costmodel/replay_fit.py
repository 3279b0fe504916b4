"""Trees with fitted parameters, each replayed on requests that its parameters have not seen.

Requests are halved by turns within their benchmark; what is fitted on one half is replayed on the
other (cross-fitting), so that every request counts once and none judges its own parameters.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specengine.trees import BestFirst, Calibrated, Sequoia, TreeBuilder
from specengine.trees.calibration import fit_calibrated, fit_sequoia, outcomes_of
from specpilot.core.errors import WorkloadError
from specpilot.costmodel.replay_best_first import best_first_replays
from specpilot.engines.base import Recording

FITTED = ("tempered", "calibrated", "sequoia")
"""Trees whose parameters come from recordings."""
TEMPERATURES = (1.0, 0.85, 1.15, 1.3, 1.5, 1.75)
"""What is tried for a best-first tree; of equal ones the first."""
Fit = Callable[[Sequence[int]], TreeBuilder]
"""Indices of the requests to fit on -> the builder."""


def halves(groups: Sequence[str]) -> list[int]:
    """0 or 1 for each request, by turns within its group."""
    seen: Counter[str] = Counter()
    found = []
    for index, group in enumerate(groups):
        # A group of one alternates with the other groups of one.
        found.append((seen[group] + (index if groups.count(group) == 1 else 0)) % 2)
        seen[group] += 1
    return found


def fitted_builders(
    recordings: Sequence[Recording],
    groups: Sequence[str],
    trees: Sequence[str],
    budgets: Sequence[int],
    positions: int,
) -> dict[str, list[TreeBuilder]]:
    """For each fitted tree among `trees`, the builder for each recording, fitted on the other half.

    Raises:
        WorkloadError: fewer than two requests, or lattices of different widths.
    """
    wanted = [name for name in FITTED if name in trees]
    half = halves(groups)
    if wanted and len(set(half)) < 2:
        raise WorkloadError(
            "holds one request; fitted trees need one to fit on and another to replay",
            where="the recording",
            fix=f"record more requests, or leave out {' and '.join(wanted)}",
        )
    others = [[i for i, side in enumerate(half) if side != own] for own in (0, 1)]
    found = {}
    for name in wanted:
        fit = fitting(name, recordings, budgets, positions)
        by_half = [fit(indices) for indices in others]
        found[name] = [by_half[side] for side in half]
    return found


def fitting(
    tree: str, recordings: Sequence[Recording], budgets: Sequence[int], positions: int
) -> Fit:
    """How a fitted tree is made from some of the recordings.

    Raises:
        WorkloadError: lattices of different widths.
    """
    widths = {item.ids.shape[2] for item in recordings}
    if len(widths) > 1:
        raise WorkloadError(
            f"hold lattices of {sorted(widths)} candidates",
            where="the recordings",
            fix="replay recordings of one drafter together",
        )
    if tree == "tempered":
        walks = walks_by_temperature(recordings, budgets, positions)
        return lambda indices: BestFirst(best_temperature(walks[:, :, list(indices)]))
    if tree == "calibrated":
        return lambda indices: calibrated_on([recordings[i] for i in indices])
    return lambda indices: sequoia_on([recordings[i] for i in indices], positions)


def calibrated_on(recordings: Sequence[Recording]) -> Calibrated:
    """The calibrated tree of some requests."""
    return fit_calibrated(outcomes_of(recordings))


def sequoia_on(recordings: Sequence[Recording], positions: int) -> Sequoia:
    """The Sequoia tree of some requests."""
    return fit_sequoia(outcomes_of(recordings), positions)


def walks_by_temperature(
    recordings: Sequence[Recording], budgets: Sequence[int], positions: int
) -> NDArray[np.int64]:
    """Tokens and steps of best-first trees at each temperature: int64 [temperatures, budgets,
    requests, 2], as `BestFirstReplay.from_starts` counts them."""
    found = []
    for temperature in TEMPERATURES:
        builder = BestFirst(temperature)
        replays = best_first_replays(recordings, positions, max(budgets), builder)
        found.append([[replay.from_starts(nodes) for replay in replays] for nodes in budgets])
    return np.array(found)


def best_temperature(walks: NDArray[np.int64]) -> float:
    """The temperature of the most tokens per step over the requests, averaged over budgets."""
    emitted, steps = np.moveaxis(walks.sum(axis=2), -1, 0)
    return TEMPERATURES[int((emitted / steps).mean(axis=1).argmax())]

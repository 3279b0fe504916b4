"""The table of an exact replay: tau per tree, node budget and benchmark (paper section 6.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.trees import TREES as KINDS
from specengine.trees import CaDDTree, Oracle, StepCost, TreeBuilder, make_builder
from specpilot.core.errors import WorkloadError
from specpilot.costmodel.replay import Replayed, mean_tau
from specpilot.costmodel.replay_fit import fitted_builders
from specpilot.costmodel.replay_trees import replays_of
from specpilot.engines.base import Recording

REFERENCE = "best_first"
_NAMES = [*KINDS, "oracle"]
_NAMES.insert(_NAMES.index(REFERENCE) + 1, "tempered")
TREES = tuple(_NAMES)
"""In the order in which they are shown: all that options can name, the best-first tree at a fitted
temperature too, and the oracle."""
Played = dict[str, dict[int, list[Replayed]]]
"""Tree -> node budget -> every recording's replay, in the recordings' order."""
Builders = dict[str, list[TreeBuilder]]
"""Tree -> the builder for each recording."""
Bounds = tuple[float, float]
_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Row:
    """One tree at one budget, over all steps of the requests.

    Intervals are 95% percentile bootstraps over requests, absent where there is one request.
    """

    tree: str
    nodes: int
    tau: float
    interval: Bounds | None
    steps: int
    requests: int
    rows_per_step: float
    """Rows that were verified, which a chain or a small tree keeps below `nodes`."""
    value_per_node: float | None
    """Tokens per step that each row beyond the budget before adds; None for the first."""
    over_reference: float | None
    """tau minus the best-first tree's at the same budget; None where that was not replayed."""
    over_interval: Bounds | None
    """Its interval, paired by request."""


def play(
    recordings: Sequence[Recording],
    groups: Sequence[str],
    trees: Sequence[str],
    budgets: Sequence[int],
    positions: int,
    cost: StepCost | None = None,
) -> Played:
    """Replay every tree at every budget.

    Args:
        groups: benchmark of each recording; the halves of cross-fitting are taken within them.
        cost: seconds of a step over its rows; CaDDTree needs it.

    Raises:
        WorkloadError: a fitted tree with fewer than two requests, or CaDDTree without costs.
    """
    builders = builders_of(recordings, groups, trees, budgets, positions, cost)
    return replay_all(recordings, builders, budgets, positions)


def replay_all(
    recordings: Sequence[Recording],
    builders: Builders,
    budgets: Sequence[int],
    positions: int,
) -> Played:
    """Replay trees whose builders are known."""
    played: Played = {}
    for tree, own in builders.items():
        replays = replays_of(recordings, tree, own, positions, budgets)
        played[tree] = {nodes: [replay.at(nodes) for replay in replays] for nodes in budgets}
    return played


def builders_of(
    recordings: Sequence[Recording],
    groups: Sequence[str],
    trees: Sequence[str],
    budgets: Sequence[int],
    positions: int,
    cost: StepCost | None,
) -> Builders:
    """Each tree's builder for each recording, in the order of the trees; see `play`."""
    fitted = fitted_builders(recordings, groups, trees, budgets, positions)
    return {
        tree: fitted[tree] if tree in fitted else [_builder(tree, cost)] * len(recordings)
        for tree in trees
    }


def _builder(tree: str, cost: StepCost | None) -> TreeBuilder:
    """One that nothing was fitted for; the oracle's answer is the recording."""
    if tree == "oracle":
        return Oracle(())
    if tree != "caddtree":
        return make_builder(tree)
    if cost is None:
        raise WorkloadError(
            "needs what a step costs", where="tree 'caddtree'", fix="give --step-seconds"
        )
    return CaDDTree(cost)


def table(played: Played, chosen: Sequence[int]) -> list[Row]:
    """Rows over the recordings with these indices, trees and budgets in the order played."""
    rows = []
    draws = _draws(len(chosen))
    for tree, by_nodes in played.items():
        before: tuple[int, float] | None = None
        for nodes, replays in sorted(by_nodes.items()):
            own = [replays[index] for index in chosen]
            reference = played.get(REFERENCE, {}).get(nodes)
            others = None if reference is None else [reference[index] for index in chosen]
            row = _row(tree, nodes, own, others, draws, before)
            before = nodes, row.tau
            rows.append(row)
    return rows


def _row(
    tree: str,
    nodes: int,
    own: Sequence[Replayed],
    reference: Sequence[Replayed] | None,
    draws: NDArray[np.int64],
    before: tuple[int, float] | None,
) -> Row:
    tau = mean_tau(own)
    drawn = _taus(own, draws)
    steps = sum(len(item.accepted) for item in own)
    over, over_interval = None, None
    if reference is not None:
        over = tau - mean_tau(reference)
        over_interval = _interval(drawn - _taus(reference, draws), len(own))
    value = None if before is None else (tau - before[1]) / (nodes - before[0])
    rows_per_step = sum(item.rows for item in own) / steps
    return Row(
        tree=tree,
        nodes=nodes,
        tau=tau,
        interval=_interval(drawn, len(own)),
        steps=steps,
        requests=len(own),
        rows_per_step=rows_per_step,
        value_per_node=value,
        over_reference=over,
        over_interval=over_interval,
    )


def by_group(groups: Sequence[str]) -> Mapping[str, list[int]]:
    """Indices of each group's recordings."""
    found: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        found.setdefault(group, []).append(index)
    return found


def _draws(requests: int) -> NDArray[np.int64]:
    """The same resampled requests for every tree, so that differences are paired."""
    return np.random.default_rng(0).integers(0, requests, size=(_DRAWS, requests))


def _taus(replays: Sequence[Replayed], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    emitted = np.array([item.emitted for item in replays], dtype=np.float64)
    steps = np.array([len(item.accepted) for item in replays], dtype=np.float64)
    found: NDArray[np.float64] = emitted[draws].sum(axis=1) / steps[draws].sum(axis=1)
    return found


def _interval(values: NDArray[np.float64], requests: int) -> Bounds | None:
    if requests < 2:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)

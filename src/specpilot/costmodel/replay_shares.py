"""Replay shared among processes: requests are independent, so each process takes some of them.

Processes are forked, which costs milliseconds and copies no recording. A fork keeps the one thread
that makes it, so the caller must be a process without others: the command line's own.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from specengine.trees import StepCost, TreeBuilder
from specpilot.costmodel.replay import Replayed
from specpilot.costmodel.replay_table import Builders, Played, builders_of
from specpilot.costmodel.replay_trees import replays_of
from specpilot.engines.base import Recording

_Share = tuple[Sequence[Recording], Sequence[TreeBuilder], str, Sequence[int], int]
_shares: list[_Share] = []
"""What forked processes find of their parent's."""


def play_shared(
    recordings: Sequence[Recording],
    groups: Sequence[str],
    trees: Sequence[str],
    budgets: Sequence[int],
    positions: int,
    cost: StepCost | None,
    workers: int,
) -> Played:
    """`replay_table.play` by several processes, with the same result.

    Args:
        workers: processes, at least 1; each gets every n-th recording of a tree.

    Raises:
        WorkloadError: see `play`.
    """
    builders = builders_of(recordings, groups, trees, budgets, positions, cost)
    return replay_all_shared(recordings, builders, budgets, positions, workers)


def replay_all_shared(
    recordings: Sequence[Recording],
    builders: Builders,
    budgets: Sequence[int],
    positions: int,
    workers: int,
) -> Played:
    """`replay_table.replay_all` by several processes, with the same result."""
    played: Played = {}
    for tree in builders:
        for first in range(workers):
            own = slice(first, None, workers)
            _shares.append((recordings[own], builders[tree][own], tree, budgets, positions))
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            found = list(pool.map(_replay, range(len(_shares))))
    finally:
        _shares.clear()
    for index, tree in enumerate(builders):
        parts = found[index * workers : (index + 1) * workers]
        played[tree] = {
            nodes: [parts[i % workers][nodes][i // workers] for i in range(len(recordings))]
            for nodes in budgets
        }
    return played


def _replay(index: int) -> dict[int, list[Replayed]]:
    recordings, builders, tree, budgets, positions = _shares[index]
    replays = replays_of(recordings, tree, builders, positions, budgets)
    return {nodes: [replay.at(nodes) for replay in replays] for nodes in budgets}

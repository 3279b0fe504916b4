"""Where a given path stands in OPT-Trees, for many lattices at once.

All lattices enter a level in the same numpy step and keep the costs of their N - 1 best nodes so
far; of the nodes themselves only the newest level's are needed, to go on from. A lattice is left to
the builder where equal scores or rounding could decide.
"""

import numpy as np
from numpy.typing import NDArray

from specengine.trees.opt_tree import OptTree
from specengine.trees.path_rows import path_costs

_ROUNDING = 1e-9
"""Tokens; sums of probabilities in another order differ by far less."""


def opt_tree_places(
    builder: OptTree, edge: NDArray[np.float32], slots: NDArray[np.int64], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Rows of the tree that hold the first tokens of a path.

    Args are those of `sequoia_places`.

    Returns:
        int64 [B, D], the smallest beginning of the tree that holds the path's first 1, 2, ...
        tokens; N + 1 where the tree does not. int64 [B], rows of each tree. bool [B], lattices
        that only the builder can answer.
    """
    if nodes == 1:
        none = np.full(slots.shape, 2, dtype=np.int64)
        return none, np.ones(len(edge), dtype=np.int64), np.zeros(len(edge), dtype=np.bool_)
    levels = _Levels(builder.threshold, edge, nodes - 1)
    levels.enter()
    path = path_costs(edge, slots)
    path[np.arange(path.shape[1]) >= levels.depth[:, None]] = np.inf
    needed = np.full(slots.shape, nodes + 1, dtype=np.int64)
    size = 1 + np.count_nonzero(np.isfinite(levels.kept), axis=1)
    for position in range(path.shape[1]):
        own = path[:, position, None]
        before = np.count_nonzero(levels.kept < own, axis=1)
        inside = np.isfinite(own[:, 0]) & (before + 1 < size)
        # Of equal scores the shallower comes first: the path's own nodes are no doubt.
        same = path == own
        equal = np.count_nonzero(levels.kept == own, axis=1)
        levels.open |= inside & (equal > np.count_nonzero(same, axis=1))
        before += np.count_nonzero(same[:, :position], axis=1)
        needed[inside, position] = before[inside] + 2
    return needed, size, levels.open


class _Levels:
    """The best nodes of the levels entered so far; axis 0 is the lattice."""

    def __init__(self, threshold: float, edge: NDArray[np.float32], room: int) -> None:
        self._threshold, self._edge, self._room = threshold, edge, room
        self.kept = np.full((len(edge), room), np.inf)
        self.depth = np.zeros(len(edge), dtype=np.int64)
        self.open = np.zeros(len(edge), dtype=np.bool_)

    def enter(self) -> None:
        """Level after level, of the lattices whose last level paid."""
        tree = np.arange(len(self._edge))
        cost, slot = np.zeros((len(tree), 1)), np.zeros((len(tree), 1), dtype=np.int64)
        won = np.zeros(len(tree))
        for position in range(self._edge.shape[1]):
            if not len(tree):
                return
            # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
            score = np.minimum(self._edge[tree[:, None], position, slot], 0.0)
            found = (cost[:, :, None] - score).reshape(len(tree), -1)
            best = np.partition(np.hstack([self.kept[tree], found]), self._room, axis=1)
            best, next_best = best[:, : self._room], best[:, self._room]
            last = best.max(axis=1)
            self.depth[tree] = position + 1
            # Of nodes that equal the last one kept, the earlier levels' stay, and if they fill the
            # tree no new one enters, nor anything below it; else the order of ranks decides.
            tie = np.isfinite(last) & (last == next_best)
            places = np.count_nonzero(best == last[:, None], axis=1)
            stay = np.count_nonzero(self.kept[tree] == last[:, None], axis=1) == places
            self.open[tree] |= tie & ~stay
            self.kept[tree] = best
            total = np.exp(-best).sum(axis=1)
            gain, won = np.maximum(total - won, 0.0), total
            if self._threshold > 0:
                self.open[tree] |= np.abs(gain - self._threshold) < _ROUNDING
            cost, slot = _frontier(found, last, score.shape[2])
            goes_on = (gain >= self._threshold) & np.isfinite(cost[:, 0]) & ~self.open[tree]
            tree, cost, slot, won = tree[goes_on], cost[goes_on], slot[goes_on], won[goes_on]


def _frontier(
    found: NDArray[np.float64], last: NDArray[np.float64], width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Costs and slots of a level's nodes that were kept, each lattice's first ones, inf beyond."""
    row, place = np.nonzero((found <= last[:, None]) & np.isfinite(found))
    count = np.bincount(row, minlength=len(found))
    column = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    shape = len(found), max(int(count.max(initial=0)), 1)
    cost, slot = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
    cost[row, column], slot[row, column] = found[row, place], place % width
    return cost, slot

"""Where a given path stands in the best-first order, for many lattices at once.

Exact replay asks one thing of a tree: after how many rows does it hold the first 1, 2, ... tokens
of the target's continuation (paper section 3.1)? A path's place in the order is the number of paths
before it, which are those of a higher score, and of equal score those that are shallower. They are
prefix-closed, so a level-wise walk that keeps only them counts them, without sorting a row or
building a tree, and ends where a lattice has more of them than rows are asked for. A path that
another of its depth equals in score is left to its builder, whose order decides ties.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rescore = Callable[[NDArray[np.floating], int], NDArray[np.floating]]
"""(rows [P, K], their position) -> scores [P, K] that a builder puts in their place."""
CHUNK = 2048
"""Lattices per walk: enough to hide the overhead of numpy calls, few enough to stay in cache."""


def places(
    scores: NDArray[np.floating],
    slots: NDArray[np.int64],
    nodes: int,
    rescore: Rescore | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Rows of the best-first tree that hold the first tokens of a path.

    Args:
        scores: float32 or float64 [B, D, K, K] in nats, finite and contiguous: a lattice's edges,
            or what a builder puts in their place; [B, D, 1, K] where parents do not matter.
        rescore: applied to the rows that the search touches.
        slots: int64 [B, D], the path's slot at each position; -1 from where it leaves the lattice.
        nodes: N, the largest tree that is asked for, the root included.

    Returns:
        int64 [B, D], the smallest tree that holds the path's first 1, 2, ... tokens; N + 1 where
        that of N rows does not. bool [B], lattices where ties leave that open.
    """
    needed = np.full(slots.shape, nodes + 1, dtype=np.int64)
    tied = np.zeros(len(slots), dtype=np.bool_)
    for start in range(0, len(slots), CHUNK):
        chunk = slice(start, start + CHUNK)
        walk = _Walk(scores[chunk], nodes, rescore)
        walk.fill(slots[chunk], needed[chunk], tied[chunk])
    return needed, tied


class _Walk:
    """The paths of one chunk of lattices."""

    def __init__(self, scores: NDArray[np.floating], nodes: int, rescore: Rescore | None) -> None:
        _, self._positions, self._parents, width = scores.shape
        self._rows = scores.reshape(-1, width)
        self._nodes, self._rescore = nodes, rescore

    def fill(
        self, slots: NDArray[np.int64], needed: NDArray[np.int64], tied: NDArray[np.bool_]
    ) -> None:
        """One token more of all paths at a time, as long as they stay within N rows."""
        trees = np.arange(len(slots))
        total, above = np.zeros(len(slots)), np.zeros(len(slots), dtype=np.int64)
        for position in range(self._positions):
            slot = slots[trees, position]
            inside = slot >= 0
            trees, slot, total, above = trees[inside], slot[inside], total[inside], above[inside]
            if not len(trees):
                return
            total = total + self._children(trees, position, above)[np.arange(len(trees)), slot]
            before, equalled = self._count(trees, total, position + 1)
            tied[trees[equalled]] = True
            inside = before < self._nodes
            trees, total, above = trees[inside], total[inside], slot[inside]
            needed[trees, position] = before[inside] + 1

    def _children(
        self, trees: NDArray[np.int64], position: int, above: NDArray[np.int64]
    ) -> NDArray[np.floating]:
        """Scores [P, K] of the candidates at a position below P parents."""
        row = (trees * self._positions + position) * self._parents
        found: NDArray[np.floating] = self._rows.take(
            row + above if self._parents > 1 else row, axis=0
        )
        if self._rescore is not None:
            found = self._rescore(found, position)
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        np.minimum(found, 0.0, out=found)
        return found

    def _count(
        self, trees: NDArray[np.int64], score: NDArray[np.float64], depth: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Rows before a path of each tree, the root's included, exact below N; and whether another
        path equals it in score and depth."""
        before = np.ones(len(trees), dtype=np.int64)
        equalled = np.zeros(len(trees), dtype=np.bool_)
        path, slot = np.arange(len(trees)), np.zeros(len(trees), dtype=np.int64)
        total = np.zeros(len(trees))
        for level in range(self._positions):
            below = total[:, None] + self._children(trees[path], level, slot)
            limit = score[path, None]
            if level + 1 == depth:
                equal = np.count_nonzero(below == limit, axis=1)
                equalled = np.bincount(path, equal, minlength=len(trees)) > 1
            row, slot = np.nonzero(below >= limit if level + 1 < depth else below > limit)
            path, total = path[row], below[row, slot]
            before += np.bincount(path, minlength=len(trees))
            # Of a path that is out of reach, no more needs to be known.
            kept = before[path] < self._nodes
            path, slot, total = path[kept], slot[kept], total[kept]
            if not len(path):
                break
        return before, equalled & (before < self._nodes)

"""Where a given path stands in the best-first order, for many lattices at once.

Exact replay asks one thing of a tree: after how many rows does it hold the first 1, 2, ... tokens
of the target's continuation (paper section 3.1)? A path's place in the order is the number of paths
before it, which are those of a higher score, and of equal score those that are shallower. They are
prefix-closed, so a walk down the levels that keeps only them counts them, without building a tree,
for all beginnings of the path at once. Where N rows come before a beginning, it and longer ones are
given up, and what comes only before these is dropped. A path that another of its depth equals in
score is left to its builder, whose order decides ties.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rescore = Callable[[NDArray[np.floating], int], NDArray[np.floating]]
"""(rows [P, K], their position) -> scores [P, K] that a builder puts in their place."""
CHUNK = 512
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
    """The paths of one chunk of lattices; axis 0 is the lattice, a column one path's beginning."""

    def __init__(self, scores: NDArray[np.floating], nodes: int, rescore: Rescore | None) -> None:
        _, self._positions, self._parents, width = scores.shape
        self._rows = scores.reshape(-1, width)
        self._nodes, self._rescore = nodes, rescore

    def fill(
        self, slots: NDArray[np.int64], needed: NDArray[np.int64], tied: NDArray[np.bool_]
    ) -> None:
        """Count what comes before the first 1, 2, ... tokens of each path, level by level."""
        shape = slots.shape
        own = self._path_scores(slots)
        # Shallower nodes come before a beginning that they equal, its own level's and deeper ones
        # only if they score more: just below its score is what the shallower have to pass.
        limits = np.nextafter(own, -np.inf)
        before = np.ones(shape, dtype=np.int64)
        equalled = np.zeros(shape, dtype=np.bool_)
        # Beginnings within N rows as far as is known. They get no cheaper along a path, so these
        # are its first ones.
        within = np.count_nonzero(slots >= 0, axis=1)
        tree = np.flatnonzero(within)
        score, slot = np.zeros(len(tree)), np.zeros(len(tree), dtype=np.int64)
        for level in range(shape[1]):
            if not len(tree):
                break
            below = score[:, None] + self._children(tree, level, slot)
            equal = np.count_nonzero(below == own[tree, level, None], axis=1)
            equalled[:, level] = np.bincount(tree, equal, minlength=shape[0]) > 1
            limits[:, level] = own[:, level]
            lowest = limits[tree, within[tree] - 1, None]
            place = np.flatnonzero(below > lowest)
            row, slot = np.divmod(place, below.shape[1])
            tree, score = tree.take(row), below.take(place)
            columns = limits.take(tree, axis=0)[:, : within.max()]
            # A node that comes before a beginning comes before all longer ones.
            first = (score[:, None] > columns).argmax(axis=1)
            found = np.bincount(tree * shape[1] + first, minlength=before.size)
            before += found.reshape(shape).cumsum(axis=1)
            within = np.minimum(within, np.count_nonzero(before < self._nodes, axis=1))
            kept = np.flatnonzero(first < within[tree])
            tree, score, slot = tree[kept], score[kept], slot[kept]
        inside = np.arange(shape[1]) < within[:, None]
        needed[inside] = before[inside] + 1
        tied |= (equalled & inside).any(axis=1)

    def _path_scores(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score of each path's first 1 to D tokens; -inf from where it leaves the lattice."""
        found = np.full(slots.shape, -np.inf)
        tree, above = np.arange(len(slots)), np.zeros(len(slots), dtype=np.int64)
        score = np.zeros(len(slots))
        for position in range(self._positions):
            slot = slots[tree, position]
            inside = slot >= 0
            tree, slot, score, above = tree[inside], slot[inside], score[inside], above[inside]
            if not len(tree):
                break
            rows = self._children(tree, position, above)
            score = score + rows[np.arange(len(tree)), slot]
            found[tree, position] = score
            above = slot
        return found

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

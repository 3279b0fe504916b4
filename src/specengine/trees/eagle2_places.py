"""Where a given path stands in EAGLE-2's trees, for many lattices at once.

All lattices expand a level in the same numpy step, their candidates in the order of their ranks, so
that a stable sort leaves equal scores in the builder's order. A lattice is followed no deeper than
something may still come before its path.
"""

import numpy as np
from numpy.typing import NDArray

from specengine.trees.eagle2 import Eagle2


def eagle2_places(
    builder: Eagle2, edge: NDArray[np.float32], slots: NDArray[np.int64], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the tree that hold the first tokens of a path.

    Args are those of `sequoia_places`.

    Returns:
        int64 [B, D], the smallest tree that holds the path's first 1, 2, ... tokens; N + 1 where
        that of N rows does not. int64 [B], rows of each tree.
    """
    levels = _Levels(builder.top_k, edge, slots, nodes)
    if nodes > 1:
        levels.expand()
    return levels.places(), np.full(len(edge), _size(builder.top_k, edge.shape, nodes))


class _Levels:
    """Candidates of every level; axis 0 is the lattice."""

    def __init__(
        self, top_k: int, edge: NDArray[np.float32], slots: NDArray[np.int64], nodes: int
    ) -> None:
        self._edge, self._slots, self._nodes, self._top_k = edge, slots, nodes, top_k
        count, positions, width, _ = edge.shape
        self._children = min(top_k, width)
        # Costs in nats of all candidates, and of the path where it is one, with its place there.
        self._costs = np.full((count, positions, top_k * self._children), np.inf)
        self._path = np.full((count, positions), np.inf)
        self._place = np.zeros((count, positions), dtype=np.int64)

    def expand(self) -> None:
        """One level of all lattices after another."""
        tree = np.flatnonzero(self._slots[:, 0] >= 0)
        cost, slot = np.zeros((len(tree), 1)), np.zeros((len(tree), 1), dtype=np.int64)
        own = np.zeros(len(tree), dtype=np.int64)
        for level in range(self._edge.shape[1]):
            if not len(tree):
                return
            rows = self._edge[tree[:, None], level, slot]
            by_rank = np.argsort(-rows, axis=2, kind="stable")[:, :, : self._children]
            # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
            score = np.minimum(np.take_along_axis(rows, by_rank, axis=2), 0.0)
            found = (cost[:, :, None] - score).reshape(len(tree), -1)
            self._costs[tree, level, : found.shape[1]] = found
            index = self._follow(tree, level, by_rank, found, own)
            best = np.argsort(found, axis=1, kind="stable")[:, : self._top_k]
            best.sort(axis=1)
            cost = np.take_along_axis(found, best, axis=1)
            slot = np.take_along_axis(by_rank.reshape(len(tree), -1), best, axis=1)
            is_path = best == index[:, None]
            own = np.where(is_path.any(axis=1), is_path.argmax(axis=1), -1)
            limit = np.where(np.isfinite(self._path[tree]), self._path[tree], 0.0).max(axis=1)
            kept = (own >= 0) | (cost.min(axis=1) < limit)
            tree, cost, slot, own = tree[kept], cost[kept], slot[kept], own[kept]

    def places(self) -> NDArray[np.int64]:
        """Rows up to the path's nodes, as `eagle2_places` returns them."""
        needed = np.full(self._path.shape, self._nodes + 1, dtype=np.int64)
        among = np.arange(self._costs.shape[2])
        for level in range(self._path.shape[1]):
            tree = np.flatnonzero(np.isfinite(self._path[:, level]))
            if not len(tree):
                break
            costs, own = self._costs[tree], self._path[tree, level]
            before = np.count_nonzero(costs < own[:, None, None], axis=(1, 2))
            equal = costs[:, : level + 1] == own[:, None, None]
            # Of equal scores the shallower comes first, then the smaller ranks.
            equal[:, level] &= among < self._place[tree, level, None]
            before += np.count_nonzero(equal, axis=(1, 2))
            needed[tree, level] = np.minimum(before + 2, self._nodes + 1)
        return needed

    def _follow(
        self,
        tree: NDArray[np.int64],
        level: int,
        by_rank: NDArray[np.intp],
        found: NDArray[np.float64],
        own: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Place of the path among a level's candidates, -1 where it is none of them or too far
        back for the tree; noted where it is."""
        each = np.arange(len(tree))
        is_next = by_rank[each, own] == self._slots[tree, level, None]
        index = own * self._children + is_next.argmax(axis=1)
        hit = (own >= 0) & is_next.any(axis=1)
        cost = found[each, np.maximum(index, 0)]
        known = self._costs[tree, : level + 1]
        hit &= np.count_nonzero(known < cost[:, None, None], axis=(1, 2)) < self._nodes - 1
        self._path[tree[hit], level] = cost[hit]
        self._place[tree[hit], level] = index[hit]
        return np.where(hit, index, -1)


def _size(top_k: int, shape: tuple[int, ...], nodes: int) -> int:
    """Rows of a tree: the expansion finds equally many candidates in every lattice."""
    _, positions, width, _ = shape
    frontier, candidates = 1, 0
    for _ in range(positions):
        found = frontier * min(top_k, width)
        candidates += found
        frontier = min(top_k, found)
    return min(nodes, 1 + candidates)

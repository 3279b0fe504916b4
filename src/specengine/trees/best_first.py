"""Best-first tree on a parent-conditioned lattice (paper sections 2.2 and 4.2).

The tree holds the N paths with the highest log-probability. Scores never rise along a path, so the
set is prefix-closed and the order is nested: the tree of n nodes is the first n nodes of any larger
one. A heap finds it in O(N log N), touching only the lattice rows that it expands.

Order of nodes: path score descending (summed in float64 from the root), then depth ascending, then
the path's tuple of ranks ascending, where the rank of a candidate is its place in its row by score,
ties by lowest slot. This order depends on the scores alone, never on how the tree was searched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, isfinite
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.draft_tree import DraftTree, tree_of_slots

Sorted = tuple[list[int], list[float]]
"""A row's slots by rank, and its scores in nats by slot, at most 0."""
Row = Callable[[int, int], Sorted]
"""(position, parent's slot) -> the row of the candidates there."""
# Ranks of a path: those of its parent's path, and its own last one. Paths of one depth, which alone
# are compared, order as flat tuples would.
_Ranks = tuple[Any, ...]
# Score negated, depth, ranks, parent node, row.
_Entry = tuple[float, int, _Ranks, int, Sorted]


@dataclass(frozen=True, slots=True)
class BestFirst:
    """Best-first by the lattice's own probabilities, or by these at another temperature; nested.

    A drafter that is too sure of itself spends rows on deep paths that the target has left long
    before. Above 1, a temperature flattens each row, which is then normalised again: paths lose
    more by their length, and siblings less by their rank.

    Attributes:
        temperature: of the scores that choose nodes; above 0. 1 leaves them as they are.
    """

    nested: ClassVar[bool] = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a temperature that orders nothing.

        Raises:
            OptionError: `temperature` is not a finite number above 0.
        """
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise OptionError(
                f"is {self.temperature}", where="best_first temperature", fix="give more than 0"
            )

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Take nodes by path probability at the temperature until `nodes` rows are reached.

        Raises:
            OptionError: `nodes` is below 1.
        """
        if self.temperature == 1.0:
            return build_best_first(lattice, anchor, nodes)
        require_root(nodes)
        search = BestFirstSearch(lattice.positions, edge_rows(self.rescored(lattice.edge)))
        search.take(nodes)
        return search.tree(lattice, anchor)

    def rescored(self, rows: NDArray[np.floating], position: int = 0) -> NDArray[np.float64]:
        """Log-probabilities in nats of the last axis at the temperature, at any position."""
        scaled = rows.astype(np.float64) / self.temperature
        scaled -= scaled.max(axis=-1, keepdims=True)
        scaled -= np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
        return scaled


def build_best_first(lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
    """Add nodes by path log-probability until `nodes` rows (root included) are reached.

    A lattice with fewer than nodes - 1 paths gives a smaller tree.

    Raises:
        OptionError: `nodes` is below 1.
    """
    require_root(nodes)
    search = BestFirstSearch(lattice.positions, edge_rows(lattice.edge))
    search.take(nodes)
    return search.tree(lattice, anchor)


def edge_rows(edge: NDArray[np.floating]) -> Row:
    """The rows of a [D, K, K] array of scores."""

    def row(position: int, slot: int) -> Sorted:
        return sorted_row(edge[position, slot].tolist())

    return row


class BestFirstSearch:
    """The nodes of one lattice in best-first order by any scores, taken as they are wanted."""

    def __init__(self, positions: int, row: Row) -> None:
        """Start with the root alone.

        Args:
            positions: D, at least 1.
            row: scores of the edges, at most 0, so that no path gains by one.
        """
        self._positions = positions
        self._row = row
        self._rows: dict[tuple[int, int], Sorted] = {}
        self._slots, self._parents, self._depths, self._scores = [0], [-1], [0], [0.0]
        first = row(0, 0)
        self._heap: list[_Entry] = [(-first[1][first[0][0]], 1, ((), 0), 0, first)]

    def __len__(self) -> int:
        """Nodes taken so far, the root included."""
        return len(self._slots)

    @property
    def scores(self) -> list[float]:
        """Path score of each node taken, the root's 0 first."""
        return self._scores

    @property
    def next_score(self) -> float:
        """Path score of the node that would be taken; -inf when there is none."""
        return -self._heap[0][0] if self._heap else -inf

    @property
    def next_depth(self) -> int:
        """Depth of the node that would be taken; 0 when there is none."""
        return self._heap[0][1] if self._heap else 0

    def take(self, nodes: int) -> None:
        """Take the best nodes that wait until there are `nodes`, or none waits."""
        slots, parents, depths = self._slots, self._parents, self._depths
        scores, heap, rows = self._scores, self._heap, self._rows
        while heap and len(slots) < nodes:
            cost, depth, ranks, parent, row = heappop(heap)
            by_rank, by_slot = row
            rank = ranks[1]
            slot = by_rank[rank]
            node = len(slots)
            slots.append(slot)
            parents.append(parent)
            depths.append(depth)
            scores.append(-cost)
            rank += 1
            if rank < len(by_rank):
                sibling = scores[parent] + by_slot[by_rank[rank]]
                heappush(heap, (-sibling, depth, (ranks[0], rank), parent, row))
            if depth < self._positions:
                key = depth, slot
                below = rows.get(key)
                if below is None:
                    below = rows[key] = self._row(depth, slot)
                child = below[1][below[0][0]] - cost
                heappush(heap, (-child, depth + 1, (ranks, 0), node, below))

    def tree(self, lattice: Lattice, anchor: int, nodes: int | None = None) -> DraftTree:
        """The nodes taken, or the first `nodes` of them; `logp` by the lattice's own edges."""
        slots, parents, depths = self._slots[:nodes], self._parents[:nodes], self._depths[:nodes]
        return tree_of_slots(lattice, anchor, slots, parents, depths)


def sorted_row(scores: list[float]) -> Sorted:
    """The slots of a row by rank, and its scores by slot."""
    # `reverse=True` keeps equal scores in slot order.
    by_rank = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    if scores[by_rank[0]] > 0:
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        scores = [min(score, 0.0) for score in scores]
    return by_rank, scores

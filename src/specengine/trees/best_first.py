"""Best-first tree on a parent-conditioned lattice (paper sections 2.2 and 4.2).

The tree holds the N paths with the highest log-probability. Scores never rise along a path, so the
set is prefix-closed and the order is nested: the tree of n nodes is the first n nodes of any larger
one. A heap finds it in O(N log N), touching only the lattice rows that it expands.

Order of nodes: path log-probability descending (summed in float64 from the root), then depth
ascending, then the path's tuple of ranks ascending, where the rank of a candidate is its place in
its row by edge score, ties by lowest slot. This order depends on the lattice alone, never on how
the tree was searched.
"""

from heapq import heappop, heappush

import numpy as np

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.draft_tree import DraftTree

# Score negated, depth, ranks of the path, parent node, row (its slots by rank, its scores by slot).
_Row = tuple[list[int], list[float]]
_Entry = tuple[float, int, tuple[int, ...], int, _Row]


def build_best_first(lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
    """Add nodes by path log-probability until `nodes` rows (root included) are reached.

    A lattice with fewer than nodes - 1 paths gives a smaller tree.

    Raises:
        OptionError: `nodes` is below 1.
    """
    require_root(nodes)
    rows: dict[tuple[int, int], _Row] = {}
    slots, parents, depths, scores = [0], [-1], [0], [0.0]
    heap: list[_Entry] = []
    positions, candidates = lattice.ids.shape

    def push_child(node: int, ranks: tuple[int, ...]) -> None:
        depth = depths[node]
        key = (depth, slots[node])
        row = rows.get(key)
        if row is None:
            row = rows[key] = _sorted_row(lattice, depth, slots[node])
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        score = scores[node] + min(row[1][row[0][0]], 0.0)
        heappush(heap, (-score, depth + 1, (*ranks, 0), node, row))

    if nodes > 1:
        push_child(0, ())
    while len(slots) < nodes and heap:
        cost, depth, ranks, parent, row = heappop(heap)
        by_rank, by_slot = row
        rank = ranks[-1]
        node = len(slots)
        slots.append(by_rank[rank])
        parents.append(parent)
        depths.append(depth)
        scores.append(-cost)
        if rank + 1 < candidates:
            sibling = scores[parent] + min(by_slot[by_rank[rank + 1]], 0.0)
            heappush(heap, (-sibling, depth, (*ranks[:-1], rank + 1), parent, row))
        if depth < positions:
            push_child(node, ranks)
    return _as_tree(lattice, anchor, slots, parents, depths, scores)


def _sorted_row(lattice: Lattice, position: int, slot: int) -> _Row:
    scores: list[float] = lattice.edge[position, slot].tolist()
    # `reverse=True` keeps equal scores in slot order.
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True), scores


def _as_tree(
    lattice: Lattice,
    anchor: int,
    slots: list[int],
    parents: list[int],
    depths: list[int],
    scores: list[float],
) -> DraftTree:
    depth = np.array(depths, dtype=np.int32)
    tokens = np.empty(len(slots), dtype=np.int64)
    tokens[0] = anchor
    tokens[1:] = lattice.ids[depth[1:] - 1, np.array(slots[1:], dtype=np.intp)]
    return DraftTree(
        tokens=tokens,
        parent=np.array(parents, dtype=np.int32),
        depth=depth,
        logp=np.array(scores, dtype=np.float32),
    )

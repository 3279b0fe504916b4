"""Best-first trees of many lattices at once: the same nodes in the same order as one by one.

Exact replay rebuilds a tree at every recorded position (paper section 3.1). All lattices take
their k-th node in the same numpy step, so the cost of a step is shared. Each node keeps its row of
children sorted and a pointer to the next one; the next node of a tree is the best of these pointed
children. Where two pointed children score equal, the tree is built by `build_best_first`, whose
order decides ties.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import BestFirstSearch, edge_rows

_CHUNK = 256
"""Trees per numpy step: enough to hide its overhead, few enough to stay in cache."""


@dataclass(frozen=True, slots=True)
class TreeBatch:
    """Trees of B lattices, each node list padded to N.

    Attributes:
        tokens: int64 [B, N]; -1 beyond a tree's size, and for the root.
        parent: int32 [B, N], index of the parent in its tree; -1 for the root and beyond the size.
        score: float64 [B, N] in nats, path scores; 0 for the root, -inf beyond a tree's size.
        size: int32 [B], nodes of each tree, the root included.
    """

    tokens: NDArray[np.int64]
    parent: NDArray[np.int32]
    score: NDArray[np.float64]
    size: NDArray[np.int32]


def build_best_first_batch(
    ids: NDArray[np.int64], edge: NDArray[np.floating], nodes: int
) -> TreeBatch:
    """Build B trees of at most `nodes` rows; equal to `build_best_first` on each lattice.

    Args:
        ids: int64 [B, D, K].
        edge: float32 or float64 [B, D, K, K], finite: a lattice's edges, or scores that a builder
            puts in their place.
        nodes: N, the root included.

    Raises:
        OptionError: `nodes` is below 1.
    """
    require_root(nodes)
    count = len(ids)
    batch = TreeBatch(
        tokens=np.full((count, nodes), -1, dtype=np.int64),
        parent=np.full((count, nodes), -1, dtype=np.int32),
        score=np.full((count, nodes), -np.inf),
        size=np.ones(count, dtype=np.int32),
    )
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        part = _Search(ids[chunk], edge[chunk], nodes)
        part.run()
        batch.tokens[chunk], batch.parent[chunk] = part.tokens, part.parent
        batch.score[chunk], batch.size[chunk] = part.score, part.size
        for index in np.flatnonzero(part.tied).tolist():
            _replace(batch, start + index, ids[start + index], edge[start + index])
    return batch


class _Search:
    """The search state of one chunk; axis 0 is the tree, axis 1 the node."""

    def __init__(self, ids: NDArray[np.int64], edge: NDArray[np.floating], nodes: int) -> None:
        self._ids, self._edge, self._nodes = ids, edge, nodes
        count, self._positions, candidates = ids.shape
        self._trees = np.arange(count)
        self.tokens = np.full((count, nodes), -1, dtype=np.int64)
        self.parent = np.full((count, nodes), -1, dtype=np.int32)
        self.size = np.ones(count, dtype=np.int32)
        self.tied = np.zeros(count, dtype=np.bool_)
        self._depth = np.zeros((count, nodes), dtype=np.intp)
        self.score = np.zeros((count, nodes))
        # Children of each node by rank; one more column ends the row.
        self._child_slot = np.zeros((count, nodes, candidates + 1), dtype=np.intp)
        self._child_edge = np.full((count, nodes, candidates + 1), -np.inf)
        self._pointer = np.zeros((count, nodes), dtype=np.intp)
        self._next_score = np.full((count, nodes), -np.inf)

    def run(self) -> None:
        """Add node after node to all trees."""
        self._open(0, np.zeros(len(self._trees), dtype=np.intp))
        for node in range(1, self._nodes):
            self._add(node)

    def _add(self, node: int) -> None:
        trees, waiting = self._trees, self._next_score[:, :node]
        parent = waiting.argmax(axis=1)
        score = waiting[trees, parent]
        found = score > -np.inf
        self.tied |= found & ((waiting == score[:, None]).sum(axis=1) > 1)
        rank = self._pointer[trees, parent]
        slot = self._child_slot[trees, parent, rank]
        depth = self._depth[trees, parent]
        # An exhausted tree rereads the end of a row, and its pointer stays there.
        following = rank + found
        self._pointer[trees, parent] = following
        self._next_score[trees, parent] = (
            self.score[trees, parent] + self._child_edge[trees, parent, following]
        )
        self.tokens[:, node] = np.where(found, self._ids[trees, depth, slot], -1)
        self.parent[:, node] = np.where(found, parent, -1)
        self.size += found
        self.score[:, node] = score
        self._depth[:, node] = depth + 1
        self._open(node, slot)

    def _open(self, node: int, slot: NDArray[np.intp]) -> None:
        """Sort the children of a new node, which was `slot` in its row."""
        depth = self._depth[:, node]
        row = self._edge[self._trees, np.minimum(depth, self._positions - 1), slot]
        order = np.argsort(-row, axis=1, kind="stable")
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        edge = np.minimum(np.take_along_axis(row, order, axis=1), 0.0)
        self._child_slot[:, node, :-1] = order
        self._child_edge[:, node, :-1] = edge
        inner = (depth < self._positions) & (self.score[:, node] > -np.inf)
        best = self.score[:, node] + self._child_edge[:, node, 0]
        self._next_score[:, node] = np.where(inner, best, -np.inf)


def _replace(
    batch: TreeBatch, index: int, ids: NDArray[np.int64], edge: NDArray[np.floating]
) -> None:
    """Build one tree with the heap, whose order decides ties; its scores stay as they are."""
    search = BestFirstSearch(len(ids), edge_rows(edge))
    search.take(batch.tokens.shape[1])
    tree = search.tree(Lattice(ids, edge.astype(np.float32)), -1)
    batch.tokens[index, : len(tree)] = tree.tokens
    batch.parent[index, : len(tree)] = tree.parent

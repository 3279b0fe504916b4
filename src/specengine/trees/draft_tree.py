"""The draft tree: continuations that the target verifies in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice


@dataclass(frozen=True, slots=True)
class DraftTree:
    """N nodes in topological order (parent before child); node 0 is the root, the anchor token.

    N counts verified rows, so the root is included.

    Attributes:
        tokens: int64 [N], token of each node; `tokens[0]` is the anchor.
        parent: int32 [N], index of the parent; -1 for the root.
        depth: int32 [N], 0 for the root.
        logp: float32 [N] in nats, path log-probability under the drafter; 0 for the root.
    """

    tokens: NDArray[np.int64]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    logp: NDArray[np.float32]

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def ancestors(self) -> NDArray[np.bool_]:
        """bool [N, N]; `[i, j]` is true when j is i or an ancestor of i: the tree's mask."""
        mask = np.eye(len(self), dtype=np.bool_)
        for node in range(1, len(self)):
            mask[node] |= mask[self.parent[node]]
        return mask

    def path(self, node: int) -> list[int]:
        """Node indices from the root to `node`, both included."""
        nodes = [node]
        while self.parent[nodes[-1]] >= 0:
            nodes.append(int(self.parent[nodes[-1]]))
        return nodes[::-1]


def tree_of_slots(
    lattice: Lattice,
    anchor: int,
    slots: Sequence[int],
    parents: Sequence[int],
    depths: Sequence[int],
) -> DraftTree:
    """The tree of nodes given by their slots; `logp` follows from the lattice's edges.

    Args:
        slots: slot of each node in the candidates of its depth; 0 for the root.
        parents: index of each node's parent, before it; -1 for the root.
        depths: 0 for the root.
    """
    depth, parent = np.array(depths, dtype=np.int32), np.array(parents, dtype=np.int32)
    slot = np.array(slots, dtype=np.intp)
    position = depth[1:] - 1
    tokens = np.empty(len(slots), dtype=np.int64)
    tokens[0] = anchor
    tokens[1:] = lattice.ids[position, slot[1:]]
    edges: list[float] = lattice.edge[position, slot[parent[1:]], slot[1:]].tolist()
    scores = [0.0]
    for above, edge in zip(parents[1:], edges, strict=True):
        # Rounding of a log-softmax may leave an edge just above 0; no path may gain by it.
        scores.append(scores[above] + min(edge, 0.0))
    return DraftTree(tokens, parent, depth, np.array(scores, dtype=np.float32))

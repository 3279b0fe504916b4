"""Where a given path stands in Sequoia's trees, for many lattices at once.

The tree is one of ranks, so the ranks of the path's tokens in their rows say all.
"""

import numpy as np
from numpy.typing import NDArray

from specengine.trees.path_rows import path_rows
from specengine.trees.sequoia import Sequoia, static_tree


def sequoia_places(
    builder: Sequoia, edge: NDArray[np.float32], slots: NDArray[np.int64], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the tree that hold the first tokens of a path.

    Args:
        edge: float32 [B, D, K, K] in nats, finite.
        slots: int64 [B, D], the path's slot at each position; -1 from where it leaves the lattice.
        nodes: N, the root included.

    Returns:
        int64 [B, D], the smallest beginning of the tree that holds the path's first 1, 2, ...
        tokens; N + 1 where the tree does not. int64 [B], rows of the tree.
    """
    count, positions, width, _ = edge.shape
    depth = min(positions, len(builder.acceptance))
    parents, ranks, _ = static_tree(builder.acceptance, depth, width, nodes)
    child = np.zeros((len(parents), width), dtype=np.int64)
    child[parents[1:], ranks[1:]] = np.arange(1, len(parents))
    needed = np.full(slots.shape, nodes + 1, dtype=np.int64)
    node = np.zeros(count, dtype=np.int64)
    lower = np.arange(width)
    for position, tree, rows, slot in path_rows(edge, slots[:, :depth]):
        own = rows[np.arange(len(tree)), slot][:, None]
        # Of equal scores the lowest slot comes first.
        rank = ((rows > own) | ((rows == own) & (lower < slot[:, None]))).sum(axis=1)
        # Below a path that has left the tree, node -1 stands for none.
        below = np.where(node[tree] >= 0, child[node[tree], rank], 0)
        node[tree] = np.where(below > 0, below, -1)
        inside = below > 0
        needed[tree[inside], position] = below[inside] + 1
    return needed, np.full(count, len(parents), dtype=np.int64)

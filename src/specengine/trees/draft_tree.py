"""The draft tree: continuations that the target verifies in one pass."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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

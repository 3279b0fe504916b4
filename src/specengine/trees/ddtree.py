"""DDTree: best-first on marginals (Ringel and Romano; paper section 2.2).

Source: the rule of liranringel/ddtree, whose drafter knows one distribution per position and none
of the parent. A lattice is a Markov chain over candidates, so its own marginals stand in for them:
m_1(b) = log p(b | anchor) and m_t(b) = log sum_a exp(m_{t-1}(a)) p(b | a), the forward pass. A
path scores the sum of its marginals, whatever its parents; the nodes are the best N - 1 paths.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import BestFirstSearch, sorted_row
from specengine.trees.draft_tree import DraftTree

_TINY = 1e-290
"""Probabilities below lose digits, and then vanish."""


@dataclass(frozen=True, slots=True)
class DDTree:
    """Best-first by the marginals of the lattice's chain; nested."""

    nested: ClassVar[bool] = True

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Take nodes by the sum of marginals until `nodes` rows are reached.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        search = marginal_search(lattice)
        search.take(nodes)
        return search.tree(lattice, anchor)

    def scores(self, edge: NDArray[np.float32]) -> NDArray[np.float64]:
        """What stands in place of the edges of B lattices to search these trees best-first.

        Each edge scores its child's marginal, whatever its parent: [B, D, 1, K].
        """
        return marginals(edge)[:, :, None, :]


def marginal_search(lattice: Lattice) -> BestFirstSearch:
    """The lattice's nodes by the sum of marginals."""
    rows = [sorted_row(scores) for scores in marginals(lattice.edge[None])[0].tolist()]
    return BestFirstSearch(lattice.positions, lambda position, slot: rows[position])


def marginals(edge: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probability in nats of each candidate under the lattice's chain.

    No candidate, however unlikely, becomes impossible: where probabilities leave the range of
    float64, they are summed in log space.

    Args:
        edge: float32 [B, D, K, K], finite, normalised over the last axis.

    Returns:
        float64 [B, D, K].
    """
    step = np.exp(edge, dtype=np.float64)
    found = np.empty(edge.shape[:3])
    found[:, 0] = step[:, 0, 0]
    for position in range(1, edge.shape[1]):
        np.matmul(found[:, position - 1, None], step[:, position], out=found[:, position, None])
    if found.size and found.min() < _TINY:
        return _summed_in_log_space(edge)
    return np.log(found, out=found)


def _summed_in_log_space(edge: NDArray[np.float32]) -> NDArray[np.float64]:
    found = np.empty(edge.shape[:3])
    found[:, 0] = edge[:, 0, 0]
    for position in range(1, edge.shape[1]):
        paths = found[:, position - 1, :, None] + edge[:, position]
        np.logaddexp.reduce(paths, axis=1, out=found[:, position])
    return found

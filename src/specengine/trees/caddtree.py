"""CaDDTree: DDTree that stops where the next node no longer pays.

Source: the rule of ZhangShuai1230/CaDDTree. Nodes come in DDTree's order. With Φ the sum of path
probabilities so far and T(n) the seconds of a step of n verified rows, the next node, of path
probability δ, is taken if (1 + Φ + δ) / T(n + 1) > (1 + Φ) / T(n), and the first refusal ends the
tree. δ never rises and T is convex, so the first refusal is the best stop. T holds drafting, as
every measured step does, and belongs to one context length.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.ddtree import marginal_search
from specengine.trees.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step over its verified rows: nondecreasing, convex, piecewise linear.

    Attributes:
        seconds: at one row.
        slopes: (rows, seconds per row by which the slope grows from there on); the first at row 1.
    """

    seconds: float
    slopes: tuple[tuple[float, float], ...]

    def __call__(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Seconds of steps that verify `rows` rows."""
        found = np.full(rows.shape, self.seconds)
        for start, by in self.slopes:
            found += by * np.maximum(rows - start, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class CaDDTree:
    """DDTree's first nodes, as many as raise tokens per second by their own estimate; nested."""

    cost: StepCost

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Take nodes by the sum of marginals while each pays, `nodes` rows at most.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        search = marginal_search(lattice)
        search.take(nodes)
        (size,) = self.sizes(np.array([search.scores])).tolist()
        return search.tree(lattice, anchor, size)

    def sizes(self, score: NDArray[np.float64]) -> NDArray[np.int64]:
        """Rows that each of B trees keeps of DDTree's nodes.

        Args:
            score: float64 [B, N], path scores in DDTree's order, the root's 0 first; -inf beyond
                a tree's size.

        Returns:
            int64 [B].
        """
        count = score.shape[1]
        tokens = np.add.accumulate(np.exp(score), axis=1)
        seconds = self.cost(np.arange(1.0, count + 1))
        pays = tokens[:, 1:] * seconds[:-1] > tokens[:, :-1] * seconds[1:]
        kept: NDArray[np.int64] = 1 + np.logical_and.accumulate(pays, axis=1).sum(axis=1)
        return kept

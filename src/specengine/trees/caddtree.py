"""CaDDTree: DDTree that stops where the next node no longer pays.

Source: the rule of ZhangShuai1230/CaDDTree. Nodes come in DDTree's order. With Φ the sum of path
probabilities so far and T(n) the seconds of a step of n verified rows, the next node, of path
probability δ, is taken if (1 + Φ + δ) / T(n + 1) > (1 + Φ) / T(n), and the first refusal ends the
tree. δ never rises and T is convex, so the first refusal is the best stop. T holds drafting, as
every measured step does, and belongs to one context length.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.ddtree import DDTree, marginal_search
from specengine.trees.draft_tree import DraftTree
from specengine.trees.parameter_file import only


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step over its verified rows: nondecreasing, convex, piecewise linear.

    Attributes:
        seconds: at one row.
        slopes: (rows, seconds per row by which the slope grows from there on); the first at row 1.
    """

    seconds: float
    slopes: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Refuse what is no cost.

        Raises:
            OptionError: seconds that are not positive, or slopes that fall or start before row 1.
        """
        starts = [start for start, _ in self.slopes]
        numbers = [self.seconds, *starts, *(by for _, by in self.slopes)]
        if not all(map(isfinite, numbers)) or self.seconds <= 0 or min(numbers) < 0:
            raise OptionError(
                f"is {self.seconds} seconds and {self.slopes}",
                where="step cost",
                fix="fit it to measured steps",
            )

    def __call__(self, rows: NDArray[np.floating]) -> NDArray[np.float64]:
        """Seconds of steps that verify `rows` rows."""
        found = np.full(rows.shape, self.seconds)
        for start, by in self.slopes:
            found += by * np.maximum(rows - start, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class CaDDTree:
    """DDTree's first nodes, as many as raise tokens per second by their own estimate; nested."""

    nested: ClassVar[bool] = True
    cost: StepCost

    @classmethod
    def from_parameters(cls, fields: Mapping[str, Any]) -> Self:
        """The builder whose `parameters` these are; errors as `parameter_file.only`."""
        seconds, slopes = only(fields, "seconds", "slopes")
        pairs = tuple((float(start), float(by)) for start, by in slopes)
        return cls(StepCost(float(seconds), pairs))

    def parameters(self) -> dict[str, Any]:
        """As a file holds them."""
        return {"seconds": self.cost.seconds, "slopes": [list(pair) for pair in self.cost.slopes]}

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

    def scores(self, edge: NDArray[np.float32]) -> NDArray[np.float64]:
        """As `DDTree.scores`, whose order this is."""
        return DDTree().scores(edge)

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

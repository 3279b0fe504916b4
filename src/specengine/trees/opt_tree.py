"""OPT-Tree: levels are added while they raise the expected tokens of the best N nodes enough.

Source: the rule of Jikai0Wang/OPT-Tree. With S_d the sum of the N - 1 largest path probabilities
among paths of at most d tokens, level after level is drafted until S_d - S_{d-1} falls below a
threshold; the tree is the N - 1 best nodes so far. There the threshold is what one more pass of the
drafter costs, in tokens. A lattice has all levels at once, so deep ones cost nothing more: at
threshold 0 the tree is the best-first tree. Order and ties as in `best_first`.
"""

from bisect import insort
from dataclasses import dataclass
from math import exp, isfinite
from typing import ClassVar

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import sorted_row
from specengine.trees.draft_tree import DraftTree
from specengine.trees.paths import Path, tree_of_paths


@dataclass(frozen=True, slots=True)
class OptTree:
    """The best nodes of the first levels; the number of levels depends on the budget, so a tree is
    not nested in a larger one.

    Attributes:
        threshold: least gain of a level in expected tokens, from 0 on; 0.5 is the source's own.
    """

    nested: ClassVar[bool] = False
    threshold: float = 0.5

    def __post_init__(self) -> None:
        """Refuse a threshold that ends no tree.

        Raises:
            OptionError: `threshold` is negative or not finite.
        """
        if not (isfinite(self.threshold) and self.threshold >= 0):
            raise OptionError(
                f"is {self.threshold}", where="opt_tree threshold", fix="give 0 or more tokens"
            )

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Keep the `nodes` - 1 best nodes of the levels that paid.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        kept: list[Path] = []
        frontier: list[Path] = [(0.0, 0, (), 0)] if nodes > 1 else []
        position = 0
        while frontier and position < lattice.positions:
            gain = _enter_level(lattice, position, frontier, kept, nodes - 1)
            position += 1
            # A gain is never negative, but for the rounding of what left and what entered.
            if max(gain, 0.0) < self.threshold:
                break
            frontier = [path for path in kept if path[1] == position]
        return tree_of_paths(lattice, anchor, kept)


def _enter_level(
    lattice: Lattice, position: int, frontier: list[Path], kept: list[Path], room: int
) -> float:
    """Put the frontier's children among the `room` best paths, which stay sorted.

    Returns:
        The expected tokens that the best paths have won by it.
    """
    gain = 0.0
    edge = lattice.edge[position]
    rows: dict[int, tuple[list[int], list[float]]] = {}
    for cost, depth, ranks, slot in frontier:
        if slot not in rows:
            rows[slot] = sorted_row(edge[slot].tolist())
        by_rank, scores = rows[slot]
        for rank, child in enumerate(by_rank):
            below = cost - min(scores[child], 0.0)
            full = len(kept) == room
            if full and below > kept[-1][0]:
                break
            path = (below, depth + 1, (*ranks, rank), child)
            if full:
                if path > kept[-1]:
                    break
                gain -= exp(-kept.pop()[0])
            insort(kept, path)
            gain += exp(-below)
    return gain

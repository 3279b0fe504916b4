"""EAGLE-2: expand the k best nodes of every level, then rerank all candidates.

Source: the rule of SafeAILab/EAGLE. The frontier starts as the root. At every level each frontier
node gives its k best children; the k best of these by path log-probability are the next frontier,
and all of them are candidates. At the end the N - 1 best candidates of all levels are the tree. On
a lattice each level is a look-up, so the levels are its positions; EAGLE's own code expands 5 or 7,
since each costs it a pass of the drafter. Order and ties as in `best_first`.
"""

from dataclasses import dataclass
from typing import ClassVar

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import sorted_row
from specengine.trees.draft_tree import DraftTree
from specengine.trees.paths import Path, tree_of_paths


@dataclass(frozen=True, slots=True)
class Eagle2:
    """Frontier expansion with a final rerank; nested.

    Attributes:
        top_k: k, both the frontier's width and the children of each of its nodes.
    """

    nested: ClassVar[bool] = True
    top_k: int = 4

    def __post_init__(self) -> None:
        """Refuse an empty frontier.

        Raises:
            OptionError: `top_k` is below 1.
        """
        if self.top_k < 1:
            raise OptionError(f"is {self.top_k}", where="eagle2 top_k", fix="give at least 1")

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Keep the `nodes` - 1 best candidates; fewer where the expansion found fewer.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        kept: list[Path] = []
        frontier: list[Path] = [(0.0, 0, (), 0)]
        for position in range(lattice.positions if nodes > 1 else 0):
            level = sorted(self._children(lattice, position, frontier))
            kept += level
            frontier = level[: self.top_k]
            # Scores never rise along a path: below a full tree's last node nothing can enter.
            if len(kept) >= nodes - 1:
                kept.sort()
                del kept[nodes - 1 :]
                if frontier[0][0] >= kept[-1][0]:
                    break
        kept.sort()
        return tree_of_paths(lattice, anchor, kept[: nodes - 1])

    def _children(self, lattice: Lattice, position: int, frontier: list[Path]) -> list[Path]:
        found: list[Path] = []
        edge = lattice.edge[position]
        for cost, depth, ranks, slot in frontier:
            by_rank, scores = sorted_row(edge[slot].tolist())
            found += [
                (cost - min(scores[child], 0.0), depth + 1, (*ranks, rank), child)
                for rank, child in enumerate(by_rank[: self.top_k])
            ]
        return found

"""Sequoia: one static tree of ranks, the best on average (Infini-AI-Lab/Sequoia).

Source: the dynamic program of the paper, with acceptance that depends on depth: p[d, r] is the
probability that the candidate of rank r at position d is accepted, given that its parent was. With
V_d(n) the most tokens to expect below an accepted node of depth d from n nodes there,

    V_d(n)    = G_{d,0}(n)
    G_{d,r}(n) = max(0, max over y of p[d, r] (1 + V_{d+1}(y - 1)) + G_{d,r+1}(n - y)),

where y nodes go to the child of rank r and its descendants. Children are taken by rank without
gaps, as in the source. The tree of ranks depends on the budget alone; a lattice decides only which
candidate holds a rank. Nodes stand by their probability of being accepted, then depth and ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import sorted_row
from specengine.trees.draft_tree import DraftTree, tree_of_slots
from specengine.trees.parameter_file import only

Acceptance = tuple[tuple[float, ...], ...]
# Ranks of a path, and the probability that it is accepted.
_Planned = tuple[tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Sequoia:
    """A static tree by rank. The optimum of n nodes need not hold that of fewer: not nested.

    Attributes:
        acceptance: p[d][r], from 0 (excluded) to 1; as deep and wide as the trees may grow.
    """

    nested: ClassVar[bool] = False
    acceptance: Acceptance

    def __post_init__(self) -> None:
        """Refuse what is no table of probabilities.

        Raises:
            OptionError: empty, ragged, or a value outside (0, 1].
        """
        widths = {len(row) for row in self.acceptance}
        if len(widths) != 1 or 0 in widths:
            raise OptionError(
                "is empty or ragged", where="sequoia acceptance", fix="give one row per position"
            )
        wrong = [p for row in self.acceptance for p in row if not 0 < p <= 1]
        if wrong:
            raise OptionError(
                f"holds {wrong[0]}", where="sequoia acceptance", fix="give probabilities above 0"
            )

    @classmethod
    def from_parameters(cls, fields: Mapping[str, Any]) -> Self:
        """The builder whose `parameters` these are; errors as `parameter_file.only`."""
        (acceptance,) = only(fields, "acceptance")
        return cls(tuple(tuple(float(value) for value in row) for row in acceptance))

    def parameters(self) -> dict[str, Any]:
        """As a file holds them."""
        return {"acceptance": [list(row) for row in self.acceptance]}

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Lay the static tree of `nodes` rows over the lattice.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        depth, width = min(lattice.positions, len(self.acceptance)), lattice.candidates
        parents, ranks, depths = static_tree(self.acceptance, depth, width, nodes)
        slots = [0]
        rows: dict[tuple[int, int], list[int]] = {}
        for parent, rank, below in zip(parents[1:], ranks[1:], depths[1:], strict=True):
            key = (below - 1, slots[parent])
            row = rows.get(key)
            if row is None:
                row = rows[key] = sorted_row(lattice.edge[key].tolist())[0]
            slots.append(row[rank])
        return tree_of_slots(lattice, anchor, slots, parents, depths)


@lru_cache(maxsize=1024)
def static_tree(
    acceptance: Acceptance, depth: int, width: int, nodes: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Parents, ranks and depths of the best tree of at most `nodes` rows, the root first.

    Args:
        depth: levels below the root.
        width: candidates per position.
    """
    table = np.array(acceptance)[:depth, :width]
    planned = _chosen(table, _choices(table, nodes - 1), nodes - 1)
    planned.sort(key=lambda item: (-item[1], len(item[0]), item[0]))
    index: dict[tuple[int, ...], int] = {(): 0}
    for ranks, _ in planned:
        index[ranks] = len(index)
    return (
        (-1, *(index[ranks[:-1]] for ranks, _ in planned)),
        (0, *(ranks[-1] for ranks, _ in planned)),
        (0, *(len(ranks) for ranks, _ in planned)),
    )


def _choices(table: NDArray[np.float64], budget: int) -> NDArray[np.intp]:
    """[D, R, budget + 1]: nodes that the child of a rank gets, of those left for it and the later
    ranks; 0 where no further child pays."""
    count, width = table.shape
    chosen = np.zeros((count, width, budget + 1), dtype=np.intp)
    below = np.zeros(budget + 1)
    # [n, y]: what the later ranks have left of n when this one takes y; y = 0 is the empty choice.
    rest = np.arange(budget + 1)[:, None] - np.arange(budget + 1)
    for position in range(count - 1, -1, -1):
        later = np.zeros(budget + 1)
        for rank in range(width - 1, -1, -1):
            own = np.concatenate([[0.0], table[position, rank] * (1 + below[:-1])])
            value = np.where(rest >= 0, own + later[rest.clip(min=0)], -1.0)
            value[:, 0] = 0.0
            chosen[position, rank] = value.argmax(axis=1)
            later = value.max(axis=1)
        below = later
    return chosen


def _chosen(table: NDArray[np.float64], choices: NDArray[np.intp], budget: int) -> list[_Planned]:
    """Follow the choices from the root."""
    planned: list[_Planned] = []
    open_nodes: list[tuple[tuple[int, ...], float, int]] = [((), 1.0, budget)]
    while open_nodes:
        ranks, probability, left = open_nodes.pop()
        if len(ranks) == len(table):
            continue
        for rank, accepted in enumerate(table[len(ranks)].tolist()):
            taken = int(choices[len(ranks), rank, left])
            if taken == 0:
                break
            child = ((*ranks, rank), probability * accepted)
            planned.append(child)
            open_nodes.append((*child, taken - 1))
            left -= taken
    return planned

"""Best-first by calibrated acceptance instead of the drafter's own confidence.

Rule: an edge scores the log-probability that its child is accepted, given that its parent was, read
off a curve that was fitted on recorded trees (`calibration.fit_calibrated`): one per depth and
rank, monotone in the edge. A drafter that is too sure of deep positions, or whose second candidates
are better than it thinks, is corrected; that the target may take no candidate counts too, which a
softmax over candidates leaves out. Scores are at most 0, so trees stay prefix-closed and nested.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.best_first import BestFirstSearch, Row, Sorted, sorted_row
from specengine.trees.draft_tree import DraftTree
from specengine.trees.parameter_file import only

BINS_PER_NAT = 128
"""Resolution of a curve; a power of two, so that a float32 edge finds its bin exactly."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """Best-first by calibrated acceptance; nested.

    Attributes:
        curves: float64 [D', R', bins] in nats, at most 0. Bin i holds the edges from
            -i / BINS_PER_NAT down to -(i + 1) / BINS_PER_NAT, the last one all below. Deeper
            positions and lower ranks than the curves have use the last of them.
    """

    nested: ClassVar[bool] = True
    curves: NDArray[np.float64]
    _lists: list[list[list[float]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse curves that could make a path gain.

        Raises:
            OptionError: not three axes, or a value that is positive or not finite.
        """
        curves = self.curves
        if curves.ndim != 3 or not curves.size or not (np.isfinite(curves) & (curves <= 0)).all():
            raise OptionError(
                f"of shape {curves.shape} hold positive or non-finite values, or none",
                where="calibrated curves",
                fix="fit them on recorded trees",
            )
        object.__setattr__(self, "_lists", curves.tolist())

    @classmethod
    def from_parameters(cls, fields: Mapping[str, Any]) -> Self:
        """The builder whose `parameters` these are; errors as `parameter_file.only`."""
        curves, places = only(fields, "curves", "places")
        table = np.array(curves, dtype=np.float64)
        index = np.array(places, dtype=np.int64)
        if table.ndim != 2 or index.ndim != 2 or (index < 0).any():
            raise ValueError("curves and places are lists of lists, places from 0 on")
        return cls(table[index])

    def parameters(self) -> dict[str, Any]:
        """As a file holds them: each curve once, and which one each depth and rank has."""
        flat = self.curves.reshape(-1, self.curves.shape[2])
        unique, place = np.unique(flat, axis=0, return_inverse=True)
        return {
            "curves": unique.tolist(),
            "places": place.reshape(self.curves.shape[:2]).tolist(),
        }

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Take nodes by calibrated acceptance until `nodes` rows are reached.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        search = BestFirstSearch(lattice.positions, self._row(lattice))
        search.take(nodes)
        return search.tree(lattice, anchor)

    def rescored(self, rows: NDArray[np.floating], position: int) -> NDArray[np.float64]:
        """Calibrated acceptance of the edges [P, K] below P nodes of one depth."""
        deepest, last_rank, last_bin = (size - 1 for size in self.curves.shape)
        place = bins(rows, last_bin)
        rank = np.minimum(_ranks(rows), last_rank)
        curves = self.curves[min(position, deepest)]
        found: NDArray[np.float64] = curves.take(rank * curves.shape[1] + place)
        return found

    def _row(self, lattice: Lattice) -> Row:
        edge, curves = lattice.edge, self._lists
        deepest, last_rank, last_bin = (size - 1 for size in self.curves.shape)
        place = bins(edge, last_bin)
        # The last curve again for every rank beyond, so that a row can be zipped with its curves.
        beyond = max(lattice.candidates - last_rank - 1, 0)
        by_depth = [
            curves[d] + curves[d][-1:] * beyond for d in range(min(lattice.positions, deepest + 1))
        ]

        def row(position: int, slot: int) -> Sorted:
            by_rank, found = sorted_row(edge[position, slot].tolist())
            places: list[int] = place[position, slot].tolist()
            for child, curve in zip(by_rank, by_depth[min(position, deepest)], strict=False):
                found[child] = curve[places[child]]
            # Nearly sorted already; equal scores stay in the order of their edges.
            return sorted(by_rank, key=found.__getitem__, reverse=True), found

        return row


def bins(edge: NDArray[np.floating], last: int) -> NDArray[np.intp]:
    """The bin, 0 to `last`, of every score in nats; all that lies below is in the last."""
    # Bounded before it is multiplied: scores of what cannot be are beyond floats and integers.
    inside = np.clip(edge, -(last + 1) / BINS_PER_NAT, 0.0)
    found: NDArray[np.intp] = np.minimum((inside * -BINS_PER_NAT).astype(np.intp), last)
    return found


def _ranks(rows: NDArray[np.floating]) -> NDArray[np.intp]:
    """Place of each score [P, K] in its row, descending, equal ones by slot.

    Sorts integers, several times as fast as a stable argsort of short rows: a float's bits, turned
    so that they order as the floats do, and the slot below them.
    """
    slots = np.arange(rows.shape[1])
    # Taken from 0, both zeros become the same one.
    bits = (0.0 - rows.astype(np.float32)).view(np.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 16 | slots
    keys.sort(axis=1)
    rank = np.empty(rows.shape, dtype=np.intp)
    rank[np.arange(len(rows))[:, None], keys & 0xFFFF] = slots
    return rank

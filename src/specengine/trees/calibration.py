"""Fit acceptance on recorded trees: Sequoia's vectors and the curves of calibrated best-first.

From every recorded anchor the target's continuation is followed down the lattice while it is among
the candidates. Each position reached is one observation: the row of the accepted parent, sorted,
and the rank that the target took, or none. Parameters belong to one target and drafter, and are
to be tried on other requests than they were fitted on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from specengine.errors import OptionError
from specengine.trees.calibrated import BINS_PER_NAT, Calibrated, bins
from specengine.trees.sequoia import Sequoia

NATS = 16
"""Range of the curves; edges below count as the last bin."""
DEPTHS = (0, 1, 2, 2, 3, 3, 3, 3, 4)
"""Group of each depth, deeper ones in the last: acceptance changes fast at first, and there is
less to learn from the deeper a tree is."""
RANKS = (0, 1, 2, 2, 3, 3, 3, 3, 4)
"""Group of each rank, lower ones in the last."""
_TRUST = 30.0
"""Accepted observations at which a fitted curve and what it leans on weigh the same: a depth's
curve leans on that of all depths, and that one on the drafter's own word."""
_CENTRE: NDArray[np.float64] = -(np.arange(NATS * BINS_PER_NAT) + 0.5) / BINS_PER_NAT
"""The edge in the middle of each bin, in nats: what the drafter says of its acceptance."""
_PRIOR = 8.0
"""Observations that the rates of all depths weigh against a depth's own."""


class Recorded(Protocol):
    """Greedy output and the lattice of every anchor, as `RecordedOutput`."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """int64 [T]."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """int64 [T - 1 or more, D, K]."""

    @property
    def edge(self) -> NDArray[np.float32]:
        """float32 [T - 1 or more, D, K, K] in nats."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """M positions that the target's continuation reached.

    Attributes:
        position: int64 [M], 0 for the first drafted one.
        edge: float32 [M, K] in nats, the parent's row by rank.
        rank: int64 [M], what the target took; -1 for no candidate.
    """

    position: NDArray[np.int64]
    edge: NDArray[np.float32]
    rank: NDArray[np.int64]


def outcomes_of(recordings: Sequence[Recorded]) -> Outcomes:
    """All positions that recorded continuations reach.

    Raises:
        OptionError: the recordings hold none.
    """
    parts = [part for item in recordings for part in _walk(item)]
    if not parts:
        raise OptionError(
            "hold no drafted position", where="recordings", fix="record longer outputs"
        )
    return Outcomes(
        np.concatenate([part.position for part in parts]),
        np.concatenate([part.edge for part in parts]),
        np.concatenate([part.rank for part in parts]),
    )


def _walk(item: Recorded) -> list[Outcomes]:
    found: list[Outcomes] = []
    anchor = np.arange(len(item.tokens) - 1)
    slot = np.zeros(len(anchor), dtype=np.int64)
    for position in range(item.ids.shape[1]):
        within = anchor + position + 1 < len(item.tokens)
        anchor, slot = anchor[within], slot[within]
        if not len(anchor):
            break
        row = item.edge[anchor, position, slot]
        order = np.argsort(-row, axis=1, kind="stable")
        taken = item.ids[anchor, position] == item.tokens[anchor + position + 1][:, None]
        hit, slot = taken.any(axis=1), taken.argmax(axis=1)
        rank = np.where(hit, (order == slot[:, None]).argmax(axis=1), -1)
        by_rank = np.take_along_axis(row, order, axis=1)
        found.append(Outcomes(np.full(len(anchor), position), by_rank, rank))
        anchor, slot = anchor[hit], slot[hit]
    return found


def fit_sequoia(outcomes: Outcomes, positions: int) -> Sequoia:
    """Acceptance by depth and rank; rare depths lean on the rates of all depths."""
    width = outcomes.edge.shape[1]
    hits = np.zeros((positions, width))
    reached = outcomes.position < positions
    taken = reached & (outcomes.rank >= 0)
    np.add.at(hits, (outcomes.position[taken], outcomes.rank[taken]), 1.0)
    seen = np.bincount(outcomes.position[reached], minlength=positions)[:, None]
    overall = (hits.sum(axis=0) + 0.5) / (seen.sum() + width)
    rates = (hits + _PRIOR * overall) / (seen + _PRIOR)
    return Sequoia(tuple(tuple(row) for row in rates.tolist()))


def fit_calibrated(outcomes: Outcomes) -> Calibrated:
    """Monotone curves of acceptance over the edge, by depth group and rank group."""
    ranks = np.arange(outcomes.edge.shape[1])
    hit = outcomes.rank[:, None] == ranks
    place = bins(outcomes.edge, NATS * BINS_PER_NAT - 1)
    depth_group = _grouped(outcomes.position, DEPTHS)
    rank_group = np.broadcast_to(_grouped(ranks, RANKS), hit.shape)
    curves = np.empty((len(DEPTHS), len(RANKS), NATS * BINS_PER_NAT))
    for group in range(RANKS[-1] + 1):
        own = rank_group == group
        pooled = _curve(place[own], hit[own], _CENTRE)
        for depth in range(DEPTHS[-1] + 1):
            chosen = own & (depth_group == depth)[:, None]
            curve = _curve(place[chosen], hit[chosen], pooled)
            curves[np.ix_(_members(DEPTHS, depth), _members(RANKS, group))] = curve
    return Calibrated(curves)


def _curve(
    place: NDArray[np.int64], hit: NDArray[np.bool_], leans_on: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log acceptance per bin: isotonic over the edge, straight between the steps' centres, falling
    with the edge below the lowest; mixed with another curve where little was accepted."""
    if not hit.any():
        return leans_on
    bins = len(_CENTRE)
    count = np.bincount(place, minlength=bins)
    hits = np.bincount(place, weights=hit, minlength=bins)
    # Ascending edges, so that acceptance rises.
    known = np.flatnonzero(count)[::-1]
    fitted = isotonic_regression(hits[known] / count[known], weights=count[known])
    starts = fitted.blocks[:-1]
    weight = np.add.reduceat(count[known], starts).astype(np.float64)
    middle = np.add.reduceat(_CENTRE[known] * count[known], starts) / weight
    level = fitted.x[starts]
    if level[0] == 0:
        # Never seen is not impossible; half a hit, but less than the step above it.
        level = level.copy()
        level[0] = min(0.5 / (weight[0] + 1), level[1] / 2)
    curve: NDArray[np.float64] = np.interp(_CENTRE, middle, np.log(level))
    lowest = middle[0] > _CENTRE
    curve[lowest] = np.log(level[0]) + _CENTRE[lowest] - middle[0]
    share = float(hit.sum() / (hit.sum() + _TRUST))
    mixed: NDArray[np.float64] = share * curve + (1 - share) * leans_on
    return mixed.clip(max=0.0)


def _grouped(values: NDArray[np.int64], groups: Sequence[int]) -> NDArray[np.int64]:
    return np.array(groups)[np.minimum(values, len(groups) - 1)]


def _members(groups: Sequence[int], group: int) -> list[int]:
    return [index for index, own in enumerate(groups) if own == group]

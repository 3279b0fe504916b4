"""Walks of many requests side by side, so that the trees of their next anchors are found together.

A walk knows its next anchor only when the tree at this one is known. But requests do not wait for
each other: a round answers the next anchors of all walks in one call, of every budget, and the
anchors where no walk stands are never asked about. Where few walks are left, a round also answers
anchors ahead of them, some in vain, because a call costs the same for a hundred lattices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees import TreeBuilder
from specpilot.costmodel.replay import Replayed, needed_rows, walk
from specpilot.engines.base import Recording

BATCH = 256
"""Lattices of a round: enough to hide the overhead of numpy calls, few enough to stay in cache."""


@dataclass(frozen=True, slots=True)
class Anchors:
    """A lattices and the target's continuation in each.

    Attributes:
        ids: int64 [A, D, K].
        edge: float32 [A, D, K, K] in nats.
        slots: int64 [A, D], slot of the tokens after the anchor while they are candidates, then -1.
    """

    ids: NDArray[np.int64]
    edge: NDArray[np.float32]
    slots: NDArray[np.int64]

    def built(self, index: int, builder: TreeBuilder, nodes: int) -> "Placed":
        """Where one continuation stands in the tree that is built for it."""
        slots = self.slots[index]
        inside = int((slots >= 0).sum())
        tree = builder(Lattice(self.ids[index], self.edge[index]), -1, nodes)
        wanted = self.ids[index][np.arange(inside), slots[:inside]]
        rows = needed_rows(tree, wanted.tolist())
        needed = np.full(len(slots), nodes + 1, dtype=np.int64)
        needed[: len(rows)] = rows
        return Placed(needed, np.array(len(tree), dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Placed:
    """Where A continuations stand in their trees.

    Attributes:
        needed: int64 [A, D], rows after which 1, 2, ... of the tokens are accepted; more than the
            tree's own size where they are not.
        size: int64 [A], rows of each tree. (Of one lattice both lack their first axis.)
    """

    needed: NDArray[np.int64]
    size: NDArray[np.int64]


Placing = Callable[[Anchors, int], Placed]
"""(lattices, largest budget) -> where their continuations stand."""


Steps = tuple[list[int], list[int]]
"""Of one recording and budget, accepted tokens and rows at each anchor."""


class WalkedReplay:
    """One recording, for the budgets that were walked."""

    def __init__(self, recording: Recording, steps: dict[int, Steps]) -> None:
        self._recording, self._steps = recording, steps

    def at(self, nodes: int) -> Replayed:
        """Replay with at most `nodes` verified rows, the root included.

        Raises:
            KeyError: this budget was not walked.
        """
        accepted, rows = self._steps[nodes]
        return walk(self._recording, lambda anchor: (accepted[anchor], rows[anchor]))


def walked_replays(
    recordings: Sequence[Recording],
    positions: int,
    budgets: Sequence[int],
    place: Placing,
    *,
    nested: bool,
) -> list[WalkedReplay]:
    """Replays of checked recordings of one width, in their order.

    Args:
        positions: of each lattice, as many as all recordings have.
        nested: whether the largest tree answers every budget.
    """
    groups = [list(budgets)] if nested else [[nodes] for nodes in budgets]
    steps: list[dict[int, Steps]] = [{} for _ in recordings]
    for group in groups:
        walks = _Walks(recordings, positions, group)
        walks.run(place)
        for index, nodes in enumerate(group):
            for own, found in zip(steps, walks.steps(index), strict=True):
                own[nodes] = found
    return [WalkedReplay(*pair) for pair in zip(recordings, steps, strict=True)]


class _Walks:
    """All walks of some budgets that one tree answers. Anchors of all recordings are numbered
    through; accepted tokens are -1 where no walk has asked yet."""

    def __init__(
        self, recordings: Sequence[Recording], positions: int, budgets: Sequence[int]
    ) -> None:
        self._recordings, self._positions, self._budgets = recordings, positions, budgets
        counts = np.array([max(len(item.tokens) - 1, 0) for item in recordings], dtype=np.int64)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - counts
        total = int(counts.sum())
        self._accepted = np.full((len(budgets), total), -1, dtype=np.int64)
        self._rows = np.zeros((len(budgets), total), dtype=np.int64)
        self._owner = np.repeat(np.arange(len(recordings)), counts)

    def run(self, place: Placing) -> None:
        """Walk to the end of all recordings."""
        at = np.tile(self._starts, (len(self._budgets), 1))
        while len(wanted := self._next(at)):
            for start in range(0, len(wanted), BATCH):
                chosen = wanted[start : start + BATCH]
                placed = place(self._gather(chosen), max(self._budgets))
                for index, nodes in enumerate(self._budgets):
                    rows = np.minimum(placed.size, nodes)
                    self._rows[index, chosen] = rows
                    inside = placed.needed <= rows[:, None]
                    self._accepted[index, chosen] = inside.sum(axis=1)

    def steps(self, index: int) -> list[Steps]:
        """Of each recording, for one budget."""
        accepted, rows = self._accepted[index].tolist(), self._rows[index].tolist()
        ends = zip(self._starts.tolist(), self._ends.tolist(), strict=True)
        return [(accepted[start:end], rows[start:end]) for start, end in ends]

    def _next(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move all walks, which stand `at`, as far as is known; the anchors to ask about then."""
        moving = np.ones(at.shape, dtype=np.bool_)
        while True:
            moving &= at < self._ends
            budget, walker = np.nonzero(moving)
            accepted = self._accepted[budget, at[budget, walker]]
            known = accepted >= 0
            moving[budget, walker] = known
            if not known.any():
                break
            at[budget[known], walker[known]] += accepted[known] + 1
        waiting = at < self._ends
        walker = np.nonzero(waiting)[1]
        ahead = np.arange(max(BATCH // max(len(walker), 1), 1))
        asked = at[waiting][:, None] + ahead
        asked = np.unique(asked[asked < self._ends[walker, None]])
        unknown: NDArray[np.int64] = asked[self._accepted[0, asked] < 0]
        return unknown

    def _gather(self, chosen: NDArray[np.int64]) -> Anchors:
        """The lattices of these anchors."""
        positions = self._positions
        width = self._recordings[0].ids.shape[2]
        ids = np.empty((len(chosen), positions, width), dtype=np.int64)
        edge = np.empty((len(chosen), positions, width, width), dtype=np.float32)
        # No candidate is -2, so the output's end is where a continuation leaves its lattice.
        wanted = np.full((len(chosen), positions), -2, dtype=np.int64)
        owners = self._owner[chosen]
        anchors = chosen - self._starts[owners]
        for row, (owner, anchor) in enumerate(zip(owners.tolist(), anchors.tolist(), strict=True)):
            item = self._recordings[owner]
            ids[row], edge[row] = item.ids[anchor, :positions], item.edge[anchor, :positions]
            following = item.tokens[anchor + 1 : anchor + 1 + positions]
            wanted[row, : len(following)] = following
        return Anchors(ids, edge, slots_of(ids, wanted))


def slots_of(ids: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [A, D]: slot of each wanted token while all before are candidates too, then -1."""
    is_wanted = ids == wanted[:, :, None]
    inside = np.logical_and.accumulate(is_wanted.any(axis=2), axis=1)
    return np.where(inside, is_wanted.argmax(axis=2), -1)

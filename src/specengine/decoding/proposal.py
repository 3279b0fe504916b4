"""What a step verifies: the anchor alone (AR), or a draft tree below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from specengine.decoding.counters import EngineCounters
from specengine.decoding.options import EngineOptions
from specengine.decoding.sampled_chain import draw_chain
from specengine.decoding.sampling import Sampler
from specengine.decoding.slots import Slot
from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import DraftTree, build

if TYPE_CHECKING:
    from specengine.drafters.base import Drafter


class Proposer(Protocol):
    """Decides which rows the target verifies next."""

    max_rows: int
    """Largest tree that it proposes."""

    def propose(
        self, slot: Slot, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """A tree rooted at `anchor` whose nodes lie at most `depth` tokens below it."""
        ...


def root_only(anchor: int) -> DraftTree:
    """The tree of an AR step."""
    return DraftTree(
        tokens=np.array([anchor], dtype=np.int64),
        parent=np.array([-1], dtype=np.int32),
        depth=np.zeros(1, dtype=np.int32),
        logp=np.zeros(1, dtype=np.float32),
    )


class AnchorProposer:
    """AR decoding: the engine without a drafter."""

    max_rows = 1

    def propose(
        self, slot: Slot, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """The anchor alone."""
        return root_only(anchor)


class LatticeProposer:
    """Draft a lattice, then build the tree that the options name."""

    def __init__(self, drafter: Drafter, options: EngineOptions, counters: EngineCounters) -> None:
        self._drafter = drafter
        self._tree = options.tree
        self._counters = counters
        self.positions = options.positions or drafter.trained_positions
        self._nodes = options.nodes or self.positions + 1
        if self._nodes == 1:
            raise OptionError(
                "is 1, which leaves no room for a drafted token",
                where="option 'nodes'",
                fix="give at least 2, or start the engine without a drafter",
            )
        self.max_rows = self._nodes

    def propose(
        self, slot: Slot, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """A tree of at most `nodes` rows; the anchor alone when no drafted token may be emitted."""
        if depth == 0:
            return root_only(anchor)
        return self.build(self.draft(slot, anchor, self.positions), anchor, depth, sampler)

    def draft(self, slot: Slot, anchor: int, positions: int) -> Lattice:
        """One drafter call; `positions` tokens whatever the remaining budget, as it was trained."""
        assert slot.state is not None
        with self._counters.timed("draft"):
            lattice = self._drafter.draft(slot.state, anchor, positions)
        if positions > self._drafter.trained_positions:
            self._counters.activations["extended_positions"] += 1
        return lattice

    def build(
        self, lattice: Lattice, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """The tree over the first `depth` positions: deeper tokens could not be emitted."""
        if depth == 0:
            return root_only(anchor)
        with self._counters.timed("build"):
            within = Lattice(ids=lattice.ids[:depth], edge=lattice.edge[:depth])
            if self._tree != "sampled_chain":
                tree = build(self._tree, within, anchor, self._nodes)
            elif sampler is None or sampler.sampling.temperature == 0.0:
                tree = build("chain", within, anchor, self._nodes)
            else:
                tree = draw_chain(within, anchor, self._nodes, sampler)
        self._counters.activations[MECHANISM_OF_TREE[self._tree]] += 1
        return tree


MECHANISM_OF_TREE = {
    "chain": "chain",
    "best_first": "best_first_tree",
    "sampled_chain": "sampled_chain",
}
"""Names under which trees are counted."""

"""What a step verifies: the anchor alone (AR), or a draft tree below it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from specengine.decoding.counters import EngineCounters
from specengine.decoding.device_trees import build_on_device, require_device_tree
from specengine.decoding.options import DRAWN_OR_GROWN, EngineOptions
from specengine.decoding.sampled_chain import SampledChain, draw_chain
from specengine.decoding.sampling import Sampler
from specengine.decoding.slots import Slot
from specengine.drafters.base import ConfidentDrafter, DeviceDrafter, GrowingDrafter
from specengine.drafters.ngram import attach_chain
from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import BestFirst, DraftTree, TreeBuilder, build_chain, make_builder
from specengine.trees.registry import tree_kind

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
        self._confidence, self._ngram = options.confidence, options.ngram
        self._check_drafter()
        self._builder, self._mechanism = _builder(options)
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
        self._on_device: DeviceDrafter | None = None
        if options.device_tree:
            self._on_device = require_device_tree(drafter, options, self.positions, self._nodes)

    def propose(
        self, slot: Slot, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """A tree of at most `nodes` rows; the anchor alone when no drafted token may be emitted."""
        if depth == 0:
            return root_only(anchor)
        if self._tree == "own":
            tree = self._grow(slot, anchor, depth)
        elif self._on_device is not None:
            tree = self._build_there(self._on_device, slot, anchor, depth)
        elif (lattice := self._cut_draft(slot, anchor)).positions == 0:
            tree = root_only(anchor)
        else:
            tree = self.build(lattice, anchor, depth, sampler)
        if self._ngram and not isinstance(tree, SampledChain):
            tree = self._attach(slot, tree, depth)
        return tree

    def draft(self, slot: Slot, anchor: int, positions: int) -> Lattice:
        """One drafter call; `positions` tokens whatever the remaining budget, as it was trained.

        Raises:
            NumericError: the drafter's numbers are not finite, or its lattice is none.
        """
        assert slot.state is not None
        with self._counters.timed("draft"):
            lattice = self._drafter.draft(slot.state, anchor, positions).check()
        self._count_positions(positions)
        return lattice

    def build(
        self, lattice: Lattice, anchor: int, depth: int, sampler: Sampler | None = None
    ) -> DraftTree:
        """The tree over the first `depth` positions: deeper tokens could not be emitted."""
        if depth == 0:
            return root_only(anchor)
        with self._counters.timed("build"):
            within = Lattice(ids=lattice.ids[:depth], edge=lattice.edge[:depth])
            if self._builder is not None:
                tree = self._builder(within, anchor, self._nodes)
            elif sampler is None or sampler.sampling.temperature == 0.0:
                tree = build_chain(within, anchor, self._nodes)
            else:
                tree = draw_chain(within, anchor, self._nodes, sampler)
        if self._tree != "own":
            self._counters.activations[self._mechanism] += 1
        return tree

    def _check_drafter(self) -> None:
        if self._tree == "own" and not isinstance(self._drafter, GrowingDrafter):
            raise OptionError(
                f"is 'own', and a {self._drafter.kind} drafter grows no tree",
                where="option 'tree'",
                fix="use 'best_first', or an EAGLE-3 drafter",
            )
        if not self._confidence:
            return
        if not isinstance(self._drafter, ConfidentDrafter):
            raise OptionError(
                f"is set, and a {self._drafter.kind} drafter estimates no acceptance",
                where="option 'confidence'",
                fix="leave it at 0, or use a DSpark drafter",
            )
        self._drafter.require_confidence()

    def _build_there(
        self, drafter: DeviceDrafter, slot: Slot, anchor: int, depth: int
    ) -> DraftTree:
        assert slot.state is not None
        with self._counters.timed("draft"):
            lattice = drafter.draft_on_device(slot.state, anchor, self.positions)
        self._count_positions(self.positions)
        with self._counters.timed("build"):
            tree = build_on_device(lattice, anchor, depth, self._nodes)
        self._counters.activations[self._mechanism] += 1
        self._counters.activations["device_tree"] += 1
        return tree

    def _count_positions(self, positions: int) -> None:
        if positions > self._drafter.trained_positions:
            self._counters.activations["extended_positions"] += 1

    def _grow(self, slot: Slot, anchor: int, depth: int) -> DraftTree:
        assert isinstance(self._drafter, GrowingDrafter)
        assert slot.state is not None
        with self._counters.timed("draft"):
            levels = min(self.positions, depth)
            tree = self._drafter.grow(slot.state, anchor, levels, self._nodes)
        self._counters.activations["own_tree"] += 1
        return tree

    def _cut_draft(self, slot: Slot, anchor: int) -> Lattice:
        """The step's lattice; fewer positions where the drafter is not confident, even none."""
        if not self._confidence:
            return self.draft(slot, anchor, self.positions)
        assert isinstance(self._drafter, ConfidentDrafter)
        assert slot.state is not None
        with self._counters.timed("draft"):
            lattice = self._drafter.draft_confident(
                slot.state, anchor, self.positions, self._confidence
            )
        if lattice.positions:
            lattice.check()
        if lattice.positions < self.positions:
            self._counters.activations["confidence_cut"] += 1
        return lattice

    def _attach(self, slot: Slot, tree: DraftTree, depth: int) -> DraftTree:
        with self._counters.timed("build"):
            longer = attach_chain(
                tree, slot.tokens, rows=self._ngram, nodes=self._nodes, depth=depth
            )
        if longer is not tree:
            self._counters.activations["ngram_chain"] += 1
        return longer


def _builder(options: EngineOptions) -> tuple[TreeBuilder | None, str]:
    """The builder of lattice trees, and what its steps are counted as; none draws its chain."""
    if options.tree not in DRAWN_OR_GROWN:
        builder = make_builder(
            options.tree, file=options.tree_file, temperature=options.tree_temperature
        )
        return builder, tree_kind(options.tree).mechanism
    if options.tree_file or options.tree_temperature != 1.0:
        raise OptionError(
            f"is '{options.tree}', which has neither parameters nor a temperature",
            where="option 'tree'",
            fix="leave 'tree_file' and 'tree_temperature' at their defaults",
        )
    if options.tree == "sampled_chain":
        return None, "sampled_chain"
    # A recording keeps lattices, and any tree over one serves to go on.
    return BestFirst(), "own_tree"

"""The way to place continuations in the trees of a builder without building them, by its class."""

from functools import partial

import numpy as np

from specengine.trees import Eagle2, OptTree, Sequoia, TreeBuilder
from specengine.trees.eagle2_places import eagle2_places
from specengine.trees.opt_tree_places import opt_tree_places
from specengine.trees.sequoia_places import sequoia_places
from specpilot.costmodel.replay_best_first import is_best_first, place_best_first
from specpilot.costmodel.replay_walks import Anchors, Placed, Placing


def placing_of(builder: TreeBuilder) -> Placing | None:
    """How many lattices are answered together; None for a builder whose trees have to be built."""
    if is_best_first(builder):
        return partial(place_best_first, builder=builder)
    if isinstance(builder, Sequoia):
        return lambda anchors, nodes: Placed(
            *sequoia_places(builder, anchors.edge, anchors.slots, nodes)
        )
    if isinstance(builder, Eagle2):
        return lambda anchors, nodes: Placed(
            *eagle2_places(builder, anchors.edge, anchors.slots, nodes)
        )
    if isinstance(builder, OptTree):
        return partial(_place_opt_tree, builder=builder)
    return None


def _place_opt_tree(anchors: Anchors, nodes: int, builder: OptTree) -> Placed:
    needed, size, left_open = opt_tree_places(builder, anchors.edge, anchors.slots, nodes)
    for index in np.flatnonzero(left_open).tolist():
        built = anchors.built(index, builder, nodes)
        needed[index], size[index] = built.needed, built.size
    return Placed(needed, size)

"""Sets of lattice paths in the order of best-first trees, and the trees that they are."""

from collections.abc import Sequence

from specengine.lattice import Lattice
from specengine.trees.draft_tree import DraftTree, tree_of_slots

Path = tuple[float, int, tuple[int, ...], int]
"""Path log-probability negated, depth, ranks from the first position on, slot of the last token.

Compared as they are, paths sort by the order of `best_first`: score descending, depth ascending,
ranks ascending.
"""


def tree_of_paths(lattice: Lattice, anchor: int, paths: Sequence[Path]) -> DraftTree:
    """The tree whose nodes below the root are `paths`, in their order.

    Args:
        paths: prefix-closed, and every prefix before what it begins.
    """
    slots, parents, depths = [0], [-1], [0]
    index: dict[tuple[int, ...], int] = {(): 0}
    for _, depth, ranks, slot in paths:
        parents.append(index[ranks[:-1]])
        index[ranks] = len(slots)
        slots.append(slot)
        depths.append(depth)
    return tree_of_slots(lattice, anchor, slots, parents, depths)

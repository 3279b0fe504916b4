"""What a tree builder promises, and the check that all of them share."""

from typing import Protocol

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.draft_tree import DraftTree


class TreeBuilder(Protocol):
    """Turns one lattice into the tree that the target verifies.

    Every builder guarantees, and `tests/specengine/trees/test_contract.py` checks:

    * nodes are in topological order and the root is the anchor with depth 0 and logp 0;
    * the first n nodes of a tree are the tree of n nodes (nested, hence prefix-closed);
    * siblings carry distinct tokens, since a lattice row names no candidate twice;
    * `logp` is the sum of the edges along the path;
    * equal lattices give equal trees, ties included.
    """

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Build a tree of at most `nodes` rows, the root included.

        A lattice that holds fewer continuations gives a smaller tree; `nodes=1` gives the root.

        Raises:
            OptionError: `nodes` is below 1.
        """
        ...


def require_root(nodes: int) -> None:
    """Refuse a budget that has no room for the root.

    Raises:
        OptionError: `nodes` is below 1.
    """
    if nodes < 1:
        raise OptionError(
            f"is {nodes}", where="option 'nodes'", fix="give at least 1: the root is counted"
        )

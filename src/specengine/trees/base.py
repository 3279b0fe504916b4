"""What a tree builder promises, and the check that all of them share."""

from typing import ClassVar, Protocol

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.draft_tree import DraftTree


class TreeBuilder(Protocol):
    """Turns one lattice into the tree that the target verifies.

    A frozen dataclass whose fields are the builder's parameters. Every builder guarantees, and
    `tests/specengine/trees/test_contract.py` checks:

    * nodes are in topological order and the root is the anchor with depth 0 and logp 0;
    * siblings carry distinct tokens, since a lattice row names no candidate twice;
    * `logp` is the sum of the lattice's edges along the path, whatever scores chose the nodes;
    * equal lattices give equal trees, ties included;
    * if `nested`, the tree of n nodes is the first n nodes of any larger tree of that lattice.
    """

    nested: ClassVar[bool]
    """Whether one large tree answers every budget. Builders that weigh the whole tree at once
    (Sequoia, OPT-Tree) are not nested: a larger budget may drop a node of the smaller tree."""

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

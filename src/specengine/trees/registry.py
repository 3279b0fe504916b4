"""Tree builders without parameters, by the name that options and commands use."""

import difflib

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import TreeBuilder
from specengine.trees.best_first import build_best_first
from specengine.trees.chain import build_chain
from specengine.trees.ddtree import DDTree
from specengine.trees.draft_tree import DraftTree
from specengine.trees.eagle2 import Eagle2
from specengine.trees.opt_tree import OptTree

BUILDERS: dict[str, TreeBuilder] = {
    "chain": build_chain,
    "best_first": build_best_first,
    "ddtree": DDTree(),
    "eagle2": Eagle2(),
    "opt_tree": OptTree(),
}
"""Sequoia, CaDDTree and calibrated best-first need what was measured before; they are made from it
(`sequoia`, `caddtree`, `calibrated`)."""


def build(name: str, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
    """Build the tree called `name`; see `TreeBuilder` for what it guarantees.

    Raises:
        OptionError: unknown name, or `nodes` below 1.
    """
    builder = BUILDERS.get(name)
    if builder is None:
        close = difflib.get_close_matches(name, BUILDERS, n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"known trees: {', '.join(BUILDERS)}"
        raise OptionError(f"unknown tree '{name}'", where="option 'tree'", fix=fix)
    return builder(lattice, anchor, nodes)

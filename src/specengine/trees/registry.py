"""Every tree that an option or a command can name: one entry each, and nothing else to edit."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.base import TreeBuilder
from specengine.trees.best_first import BestFirst
from specengine.trees.caddtree import CaDDTree
from specengine.trees.calibrated import Calibrated
from specengine.trees.chain import Chain
from specengine.trees.ddtree import DDTree
from specengine.trees.draft_tree import DraftTree
from specengine.trees.eagle2 import Eagle2
from specengine.trees.opt_tree import OptTree
from specengine.trees.parameter_file import read_parameters
from specengine.trees.sequoia import Sequoia


@dataclass(frozen=True, slots=True)
class TreeKind:
    """One tree: what its steps are counted as, and its builder or how a file gives one."""

    mechanism: str
    builder: TreeBuilder | None = None
    """None for a tree whose parameters were measured before: they come from a file."""
    read: Callable[[Mapping[str, Any]], TreeBuilder] | None = None
    """Fields of a parameter file -> builder; see `parameter_file`."""


TREES: dict[str, TreeKind] = {
    "chain": TreeKind("chain", Chain()),
    "best_first": TreeKind("best_first_tree", BestFirst()),
    "calibrated": TreeKind("calibrated_tree", read=Calibrated.from_parameters),
    "ddtree": TreeKind("ddtree", DDTree()),
    "caddtree": TreeKind("caddtree", read=CaDDTree.from_parameters),
    "eagle2": TreeKind("eagle2", Eagle2()),
    "sequoia": TreeKind("sequoia", read=Sequoia.from_parameters),
    "opt_tree": TreeKind("opt_tree", OptTree()),
}


def tree_kind(name: str) -> TreeKind:
    """The entry called `name`.

    Raises:
        OptionError: there is none.
    """
    kind = TREES.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, TREES, n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"known trees: {', '.join(TREES)}"
        raise OptionError(f"unknown tree '{name}'", where="option 'tree'", fix=fix)
    return kind


def make_builder(name: str, *, file: str = "", temperature: float = 1.0) -> TreeBuilder:
    """The builder that options describe.

    Args:
        file: parameters, for the trees that have some; empty for the others.
        temperature: of a best-first tree; 1 for the others.

    Raises:
        OptionError: unknown name, a setting that the tree does not have or lacks, or a bad file.
    """
    kind = tree_kind(name)
    if kind.read is not None:
        if not file:
            raise OptionError(
                f"is empty, and tree '{name}' has parameters",
                where="option 'tree_file'",
                fix="name a file that `specpilot replay --fit` wrote",
            )
        builder = read_parameters(Path(file), name, kind.read)
    else:
        assert kind.builder is not None
        builder = kind.builder
        if file:
            raise OptionError(
                f"is set, and tree '{name}' has no parameters",
                where="option 'tree_file'",
                fix="leave it empty",
            )
    if temperature == 1.0:
        return builder
    if not isinstance(builder, BestFirst):
        raise OptionError(
            f"is {temperature}, and tree '{name}' has none",
            where="option 'tree_temperature'",
            fix="leave it at 1, or use 'best_first'",
        )
    return BestFirst(temperature)


def build(name: str, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
    """Build the tree without parameters called `name`; see `TreeBuilder` for its guarantees.

    Raises:
        OptionError: unknown name, one that needs parameters, or `nodes` below 1.
    """
    return make_builder(name)(lattice, anchor, nodes)

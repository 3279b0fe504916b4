"""Random lattices for tests of trees."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import TreeBuilder

MakeLattice = Callable[..., Lattice]
BuiltPlaces = Callable[[TreeBuilder, Lattice, list[int], int], tuple[list[int], int]]


@pytest.fixture
def make_lattice() -> MakeLattice:
    """Return a function that draws a normalised lattice."""
    return draw_lattice


def draw_lattice(
    seed: int, positions: int, candidates: int, *, spread: float = 2.0, ties: bool = False
) -> Lattice:
    """Draw a lattice; `ties` rounds the scores so coarsely that equal ones abound."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(positions, candidates, candidates)) * spread
    if ties:
        scores = np.round(scores / spread)
    scores[0] = scores[0, 0]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    if ties:
        edge = np.minimum(np.round(edge), 0.0)
    ids = np.stack([rng.permutation(1000)[:candidates] for _ in range(positions)])
    return Lattice(ids=ids.astype(np.int64), edge=edge.astype(np.float32)).check()


@pytest.fixture
def built_places() -> BuiltPlaces:
    """`built_places(builder, lattice, slots, nodes)`: rows of the built tree up to each token of a
    path, and the tree's size."""
    return places_by_building


def places_by_building(
    builder: TreeBuilder, lattice: Lattice, slots: list[int], nodes: int
) -> tuple[list[int], int]:
    """Walk the path down the tree that the builder makes."""
    tree = builder(lattice, -1, nodes)
    found, tip = [nodes + 1] * lattice.positions, 0
    for position, slot in enumerate(slots):
        is_next = (tree.parent == tip) & (tree.tokens == lattice.ids[position, slot])
        if slot < 0 or not is_next.any():
            break
        tip = int(is_next.argmax())
        found[position] = tip + 1
    return found, len(tree)

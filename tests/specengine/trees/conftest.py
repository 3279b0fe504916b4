"""Random lattices for tests of trees."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.lattice import Lattice

MakeLattice = Callable[..., Lattice]


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

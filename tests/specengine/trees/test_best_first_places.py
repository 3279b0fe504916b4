"""A path's place in the best-first order is where the builder puts it, ties reported."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import BestFirst, Calibrated, DDTree, TreeBuilder
from specengine.trees.best_first_places import places

MakeLattice = Callable[..., Lattice]
BuiltPlaces = Callable[[TreeBuilder, Lattice, list[int], int], tuple[list[int], int]]
CURVES = np.sort(np.random.default_rng(0).uniform(-4, 0, (3, 2, 900)))[..., ::-1]


def searched(builder: TreeBuilder, lattices: list[Lattice], slots: np.ndarray, nodes: int):
    edge = np.stack([lattice.edge for lattice in lattices])
    if isinstance(builder, DDTree):
        return places(builder.scores(edge), slots, nodes)
    if builder == BestFirst():
        return places(edge, slots, nodes)
    return places(edge, slots, nodes, builder.rescored)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "builder",
    [BestFirst(), BestFirst(1.4), DDTree(), Calibrated(CURVES)],
    ids=lambda item: str(item)[:14],
)
def test_equals_the_built_trees(
    builder: TreeBuilder, ties: bool, make_lattice: MakeLattice, built_places: BuiltPlaces
) -> None:
    rng = np.random.default_rng(3)
    checked, open_ = 0, 0
    for seed in range(30):
        shape = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        lattices = [make_lattice(50 * seed + i, *shape, ties=ties) for i in range(5)]
        slots = rng.integers(0, min(shape[1], 2), (5, shape[0]))
        for row, cut in zip(slots, rng.integers(0, shape[0] + 3, 5), strict=True):
            row[cut:] = -1
        nodes = int(rng.integers(1, 40))
        needed, tied = searched(builder, lattices, slots, nodes)
        for i in range(5):
            open_ += int(tied[i])
            if not tied[i]:
                checked += 1
                wanted, _ = built_places(builder, lattices[i], slots[i].tolist(), nodes)
                assert needed[i].tolist() == wanted
    assert checked > 40
    assert (open_ > 0) == ties


def test_certain_edges_are_no_ties() -> None:
    """A child that costs nothing scores as its parent does, and comes after it."""
    edge = np.full((1, 4, 2, 2), -20.0, dtype=np.float32)
    edge[..., 0] = 1e-7
    needed, tied = places(edge, np.zeros((1, 4), dtype=np.int64), 5)
    assert needed.tolist() == [[2, 3, 4, 5]]
    assert not tied.any()


def test_no_lattice_has_no_places() -> None:
    needed, tied = places(
        np.zeros((0, 3, 2, 2), dtype=np.float32), np.zeros((0, 3), dtype=np.int64), 4
    )
    assert (needed.shape, tied.shape) == ((0, 3), (0,))

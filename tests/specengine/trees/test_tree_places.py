"""Where a path stands in EAGLE-2's, Sequoia's and OPT-Trees without building them."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import Eagle2, OptTree, Sequoia, TreeBuilder
from specengine.trees.eagle2_places import eagle2_places
from specengine.trees.opt_tree_places import opt_tree_places
from specengine.trees.sequoia_places import sequoia_places

MakeLattice = Callable[..., Lattice]
BuiltPlaces = Callable[[TreeBuilder, Lattice, list[int], int], tuple[list[int], int]]
RATES = np.sort(np.random.default_rng(1).uniform(0.02, 0.6, (5, 4)), axis=1)[:, ::-1]
BUILDERS = [
    Eagle2(),
    Eagle2(1),
    Eagle2(7),
    Sequoia(tuple(map(tuple, RATES.tolist()))),
    OptTree(),
    OptTree(0.05),
    OptTree(0.0),
]


def placed(
    builder: TreeBuilder, lattices: list[Lattice], slots: np.ndarray, nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    edge = np.stack([lattice.edge for lattice in lattices])
    if isinstance(builder, OptTree):
        return opt_tree_places(builder, edge, slots, nodes)
    known = np.zeros(len(lattices), dtype=np.bool_)
    if isinstance(builder, Eagle2):
        return *eagle2_places(builder, edge, slots, nodes), known
    assert isinstance(builder, Sequoia)
    return *sequoia_places(builder, edge, slots, nodes), known


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("builder", BUILDERS, ids=lambda item: str(item)[:22])
def test_equals_the_built_trees(
    builder: TreeBuilder, ties: bool, make_lattice: MakeLattice, built_places: BuiltPlaces
) -> None:
    rng = np.random.default_rng(3)
    answered = 0
    for seed in range(40):
        shape = int(rng.integers(1, 8)), int(rng.integers(1, 7))
        spread = float(rng.choice([0.5, 2.0, 5.0]))
        lattices = [make_lattice(50 * seed + i, *shape, spread=spread, ties=ties) for i in range(6)]
        edge = np.stack([lattice.edge for lattice in lattices])
        # Paths of likely slots, some of which leave their lattice.
        slots = np.zeros((6, shape[0]), dtype=np.int64)
        for tree in range(6):
            above = 0
            for position in range(shape[0]):
                order = np.argsort(-edge[tree, position, above], kind="stable")
                above = int(order[min(rng.geometric(0.6) - 1, shape[1] - 1)])
                slots[tree, position] = above
            slots[tree, rng.integers(0, shape[0] + 4) :] = -1
        nodes = int(rng.integers(1, 40))
        needed, size, left_open = placed(builder, lattices, slots, nodes)
        for i in range(6):
            if left_open[i]:
                continue
            answered += 1
            wanted, rows = built_places(builder, lattices[i], slots[i].tolist(), nodes)
            assert size[i] == rows
            # Beyond the tree's own size, how far beyond says nothing.
            assert np.minimum(needed[i], rows + 1).tolist() == np.minimum(wanted, rows + 1).tolist()
    assert answered > (30 if ties else 200)


@pytest.mark.parametrize("builder", [Eagle2(), OptTree(0.0)], ids=str)
def test_certain_edges_leave_nothing_open(builder: TreeBuilder) -> None:
    """A child that costs nothing scores as its parent does, and comes after it."""
    edge = np.full((4, 2, 2), -20.0, dtype=np.float32)
    edge[..., 0] = 1e-7
    lattice = Lattice(np.arange(8).reshape(4, 2), edge)
    needed, size, left_open = placed(builder, [lattice], np.zeros((1, 4), dtype=np.int64), 4)
    assert needed[0].tolist() == [2, 3, 4, 5]
    assert size.tolist() == [4]
    assert not left_open.any()

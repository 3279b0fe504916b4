"""Trees built together equal trees built one by one, node for node."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import (
    CaDDTree,
    DDTree,
    StepCost,
    best_first_batch,
    build_best_first,
    build_best_first_batch,
)

MakeLattice = Callable[..., Lattice]


def check_equal(lattices: list[Lattice], nodes: int) -> None:
    ids = np.stack([lattice.ids for lattice in lattices])
    edge = np.stack([lattice.edge for lattice in lattices])
    batch = build_best_first_batch(ids, edge, nodes)
    assert batch.tokens.shape == batch.parent.shape == (len(lattices), nodes)
    for index, lattice in enumerate(lattices):
        tree = build_best_first(lattice, -1, nodes)
        size = int(batch.size[index])
        assert size == len(tree)
        np.testing.assert_array_equal(batch.tokens[index, :size], tree.tokens)
        np.testing.assert_array_equal(batch.parent[index, :size], tree.parent)
        assert (batch.tokens[index, size:] == -1).all()
        assert (batch.parent[index, size:] == -1).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_equals_one_by_one(seed: int, ties: bool, make_lattice: MakeLattice) -> None:
    rng = np.random.default_rng(seed)
    positions, candidates = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    lattices = [
        make_lattice(1000 * seed + index, positions, candidates, ties=ties) for index in range(20)
    ]
    check_equal(lattices, int(rng.integers(1, 50)))


def test_equals_one_by_one_at_full_size(make_lattice: MakeLattice) -> None:
    check_equal([make_lattice(seed, 16, 16) for seed in range(40)], 64)


def test_more_lattices_than_a_chunk(
    make_lattice: MakeLattice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_first_batch, "_CHUNK", 4)
    check_equal([make_lattice(seed, 3, 3) for seed in range(11)], 8)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_other_scores_in_place_of_the_edges(
    seed: int, ties: bool, make_lattice: MakeLattice
) -> None:
    lattices = [
        make_lattice(100 * seed + i, 1 + seed % 5, 1 + seed % 4, ties=ties) for i in range(5)
    ]
    ids = np.stack([lattice.ids for lattice in lattices])
    edge = np.stack([lattice.edge for lattice in lattices])
    batch = build_best_first_batch(ids, np.broadcast_to(DDTree().scores(edge), edge.shape), 24)
    cost = CaDDTree(StepCost(1.0, ((1.0, 0.02), (6.0, 0.04))))
    sizes = cost.sizes(batch.score)
    for index, lattice in enumerate(lattices):
        tree = DDTree()(lattice, -1, 24)
        size = int(batch.size[index])
        assert size == len(tree)
        np.testing.assert_array_equal(batch.tokens[index, :size], tree.tokens)
        np.testing.assert_array_equal(batch.parent[index, :size], tree.parent)
        assert (batch.score[index, size:] == -np.inf).all()
        assert sizes[index] == len(cost(lattice, -1, 24))


def test_no_lattice_gives_no_tree() -> None:
    batch = build_best_first_batch(
        np.zeros((0, 3, 2), dtype=np.int64), np.zeros((0, 3, 2, 2), dtype=np.float32), 4
    )
    assert batch.tokens.shape == (0, 4)


def test_a_budget_without_room_for_the_root_is_refused() -> None:
    with pytest.raises(OptionError, match="option 'nodes'"):
        build_best_first_batch(
            np.zeros((1, 1, 1), dtype=np.int64), np.zeros((1, 1, 1, 1), dtype=np.float32), 0
        )

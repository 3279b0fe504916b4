"""The shared budget against a sort over all nodes of all requests."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import build_best_first, build_shared

MakeLattice = Callable[..., Lattice]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_takes_the_best_nodes_of_all(seed: int, ties: bool, make_lattice: MakeLattice) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    lattices = [
        make_lattice(100 * seed + i, int(rng.integers(1, 6)), int(rng.integers(1, 5)), ties=ties)
        for i in range(count)
    ]
    nodes = count + int(rng.integers(0, 40))
    trees = build_shared(lattices, list(range(count)), nodes)
    full = [build_best_first(item, i, nodes - count + 1) for i, item in enumerate(lattices)]
    every = sorted(
        (-float(tree.logp[node]), int(tree.depth[node]), request)
        for request, tree in enumerate(full)
        for node in range(1, len(tree))
    )[: nodes - count]
    for request, (tree, whole) in enumerate(zip(trees, full, strict=True)):
        assert len(tree) == 1 + sum(owner == request for _, _, owner in every)
        for field in ("tokens", "parent", "depth", "logp"):
            np.testing.assert_array_equal(getattr(tree, field), getattr(whole, field)[: len(tree)])


def test_a_sure_request_gets_more_than_an_unsure_one() -> None:
    sure = np.log(np.tile(np.array([0.98, 0.02], dtype=np.float32), (6, 2, 1)))
    unsure = np.log(np.tile(np.array([0.5, 0.5], dtype=np.float32), (6, 2, 1)))
    ids = np.arange(12).reshape(6, 2)
    first, second = build_shared([Lattice(ids, unsure), Lattice(ids, sure)], [20, 21], 10)
    assert len(first) + len(second) == 10
    assert len(second) > len(first) > 1


def test_small_lattices_leave_rows_unused(make_lattice: MakeLattice) -> None:
    trees = build_shared([make_lattice(0, 1, 2), make_lattice(1, 2, 1)], [7, 8], 50)
    assert [len(tree) for tree in trees] == [3, 3]


def test_a_budget_below_one_row_per_request_is_refused(make_lattice: MakeLattice) -> None:
    with pytest.raises(OptionError, match="is 1 for 2 requests"):
        build_shared([make_lattice(0, 2, 2)] * 2, [1, 2], 1)
    assert build_shared([], [], 0) == []

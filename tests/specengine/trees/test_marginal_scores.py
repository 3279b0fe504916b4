"""Scores found together equal those of the trees searched one by one."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import CaDDTree, StepCost
from specengine.trees.ddtree import marginal_search, marginals
from specengine.trees.marginal_scores import best_marginal_scores

MakeLattice = Callable[..., Lattice]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_equal_one_by_one(seed: int, ties: bool, make_lattice: MakeLattice) -> None:
    rng = np.random.default_rng(seed)
    shape, nodes = (1 + seed % 6, 1 + seed % 5), int(rng.integers(1, 50))
    lattices = [make_lattice(100 * seed + i, *shape, ties=ties) for i in range(8)]
    found = best_marginal_scores(marginals(np.stack([item.edge for item in lattices])), nodes)
    builder = CaDDTree(StepCost(1.0, ((1.0, 0.02), (6.0, 0.04))))
    for row, size, lattice in zip(found, builder.sizes(found), lattices, strict=True):
        search = marginal_search(lattice)
        search.take(nodes)
        assert row[: len(search)].tolist() == search.scores
        assert (row[len(search) :] == -np.inf).all()
        assert size == len(builder(lattice, -1, nodes))

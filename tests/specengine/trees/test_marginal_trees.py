"""DDTree against enumerated marginals, CaDDTree against every stop, step costs against scipy."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import CaDDTree, DDTree, StepCost
from specengine.trees.ddtree import _summed_in_log_space, marginals
from specengine.trees.step_cost import fit_step_cost

MakeLattice = Callable[..., Lattice]


def enumerated_marginals(lattice: Lattice) -> np.ndarray:
    """Sum over all paths of the chain, one by one."""
    found = np.zeros(lattice.ids.shape)
    for depth in range(1, lattice.positions + 1):
        for slots in product(range(lattice.candidates), repeat=depth):
            above = (0, *slots[:-1])
            total = sum(
                float(lattice.edge[position, parent, slot])
                for position, (parent, slot) in enumerate(zip(above, slots, strict=True))
            )
            found[depth - 1, slots[-1]] += np.exp(total)
    return np.log(found)


@pytest.mark.parametrize("seed", range(10))
def test_marginals_are_sums_over_paths(seed: int, make_lattice: MakeLattice) -> None:
    lattice = make_lattice(seed, 1 + seed % 5, 1 + seed % 4)
    found = marginals(lattice.edge[None])[0]
    np.testing.assert_allclose(found, enumerated_marginals(lattice), atol=1e-6)


def test_both_ways_of_summing_agree(make_lattice: MakeLattice) -> None:
    edge = np.stack([make_lattice(seed, 16, 16, spread=6.0).edge for seed in range(4)])
    np.testing.assert_allclose(marginals(edge), _summed_in_log_space(edge), atol=1e-9)


def test_no_candidate_becomes_impossible() -> None:
    edge = np.full((3, 2, 2), -1000.0, dtype=np.float32)
    edge[:, :, 0] = 0.0
    lattice = Lattice(np.array([[1, 2], [3, 4], [5, 6]]), edge)
    assert marginals(edge[None])[0, :, 1].tolist() == [-1000.0] * 3
    assert len(DDTree()(lattice, 9, 15)) == 15


@pytest.mark.parametrize("seed", range(100))
def test_ddtree_holds_the_paths_with_the_largest_sums_of_marginals(
    seed: int, make_lattice: MakeLattice
) -> None:
    lattice = make_lattice(seed, 1 + seed % 4, 1 + seed % 3)
    marginal = enumerated_marginals(lattice)
    sums = {
        slots: sum(float(marginal[position, slot]) for position, slot in enumerate(slots))
        for depth in range(1, lattice.positions + 1)
        for slots in product(range(lattice.candidates), repeat=depth)
    }
    best = sorted(sums, key=lambda slots: -sums[slots])[: 5 + seed % 20]
    tree = DDTree()(lattice, 7, len(best) + 1)
    expected = {
        tuple(int(lattice.ids[position, slot]) for position, slot in enumerate(slots))
        for slots in best
    }
    found = {tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, len(tree))}
    assert found == expected


def test_marginals_do_not_see_the_parent() -> None:
    # After 11 the likely token is 21, yet 20 has the larger marginal.
    edge = np.log(np.array([[[0.55, 0.45]] * 2, [[0.99, 0.01], [0.4, 0.6]]], dtype=np.float32))
    lattice = Lattice(np.array([[10, 11], [20, 21]]), edge)
    tree = DDTree()(lattice, 7, 5)
    paths = [tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, 5)]
    assert set(paths) == {(10,), (10, 20), (11,), (11, 20)}
    assert tree.logp[paths.index((11, 20)) + 1] == pytest.approx(np.log(0.45 * 0.4))


@pytest.mark.parametrize("seed", range(60))
def test_caddtree_stops_at_its_best_estimate(seed: int, make_lattice: MakeLattice) -> None:
    rng = np.random.default_rng(seed)
    lattice = make_lattice(seed, 4, 4)
    kinks = np.sort(rng.uniform(1, 40, 3))
    cost = StepCost(1.0, tuple((float(at), float(rng.uniform(0, 0.1))) for at in kinks))
    tree = CaDDTree(cost)(lattice, 7, 40)
    full = DDTree()(lattice, 7, 40)
    marginal = marginals(lattice.edge[None])[0]
    score = np.zeros(40)
    for node in range(1, 40):
        depth = int(full.depth[node])
        slot = int(np.flatnonzero(lattice.ids[depth - 1] == full.tokens[node])[0])
        score[node] = score[full.parent[node]] + marginal[depth - 1, slot]
    rates = np.cumsum(np.exp(score)) / cost(np.arange(1.0, 41.0))
    assert len(tree) == int(np.argmax(rates)) + 1
    np.testing.assert_array_equal(tree.tokens, full.tokens[: len(tree)])
    assert CaDDTree(cost).sizes(score[None]).tolist() == [len(tree)]


def test_nodes_that_cost_nothing_are_all_taken(make_lattice: MakeLattice) -> None:
    assert len(CaDDTree(StepCost(1.0, ()))(make_lattice(0, 3, 3), 7, 100)) == 40


def test_where_no_row_pays_nothing_is_drafted(make_lattice: MakeLattice) -> None:
    # A second row that costs a whole step more can give one token more at best.
    for seed in range(20):
        assert len(CaDDTree(StepCost(1.0, ((1.0, 1.0),)))(make_lattice(seed, 3, 3), 7, 100)) == 1


def test_a_row_that_pays_just_what_it_costs_is_not_drafted() -> None:
    sure = Lattice(np.array([[4], [5]]), np.zeros((2, 1, 1), dtype=np.float32))
    assert len(CaDDTree(StepCost(1.0, ((1.0, 1.0),)))(sure, 7, 3)) == 1


@pytest.mark.parametrize("seed", range(10))
def test_step_costs_are_the_best_convex_nondecreasing_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.array([1, 8, 16, 32, 64])
    seconds = 0.02 + 0.0002 * rows + rng.normal(0, 0.002, len(rows))
    cost = fit_step_cost(dict(zip(rows.tolist(), seconds.tolist(), strict=True)))
    fitted = cost(rows)
    slopes = np.diff(fitted) / np.diff(rows)
    assert (slopes >= 0).all()
    assert (np.diff(slopes) >= -1e-12).all()
    # The same problem to a general solver, over the values at the measured sizes.
    step = np.diff(np.eye(len(rows)), axis=0) / np.diff(rows)[:, None]
    shape = LinearConstraint(np.vstack([step[:1], np.diff(step, axis=0)]) * 1e3, 0, np.inf)

    def loss(values: np.ndarray) -> float:
        return float((((values - seconds) / seconds) ** 2).sum())

    other = minimize(loss, np.full(len(rows), seconds.mean()), constraints=[shape], tol=1e-14)
    assert loss(fitted) <= loss(other.x) + 1e-9


def test_step_costs_go_through_convex_measurements() -> None:
    measured = {8: 1.0, 16: 1.1, 32: 1.5, 64: 4.0}
    cost = fit_step_cost(measured)
    for rows, seconds in measured.items():
        assert cost(np.array(rows)) == pytest.approx(seconds)
    assert cost(np.array(80)) == pytest.approx(4.0 + 16 * 2.5 / 32)


@pytest.mark.parametrize("wrong", [{}, {8: 1.0}, {8: 1.0, 16: float("nan")}, {8: 0.0, 16: 1.0}])
def test_step_costs_that_fit_nothing_are_refused(wrong: dict[int, float]) -> None:
    with pytest.raises(OptionError, match="step costs"):
        fit_step_cost(wrong)

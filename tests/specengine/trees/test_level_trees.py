"""EAGLE-2 and OPT-Tree against their definitions written out level by level."""

from collections.abc import Callable

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import DraftTree, Eagle2, OptTree, build_best_first

MakeLattice = Callable[..., Lattice]
Slots = tuple[int, ...]


def children(lattice: Lattice, slots: Slots) -> dict[Slots, float]:
    row = lattice.edge[len(slots), slots[-1] if slots else 0]
    return {(*slots, slot): float(row[slot]) for slot in range(lattice.candidates)}


def paths_of(lattice: Lattice, tree: DraftTree) -> set[Slots]:
    found = set()
    for node in range(1, len(tree)):
        tokens = tree.tokens[tree.path(node)[1:]]
        found.add(tuple(int(np.flatnonzero(lattice.ids[d] == t)[0]) for d, t in enumerate(tokens)))
    return found


def best(scores: dict[Slots, float], count: int) -> dict[Slots, float]:
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:count])


@pytest.mark.parametrize("seed", range(60))
def test_eagle2_expands_k_nodes_a_level_and_reranks_all(
    seed: int, make_lattice: MakeLattice
) -> None:
    rng = np.random.default_rng(seed)
    lattice = make_lattice(seed, int(rng.integers(1, 7)), int(rng.integers(1, 7)))
    top_k, nodes = int(rng.integers(1, 6)), int(rng.integers(2, 40))
    frontier: dict[Slots, float] = {(): 0.0}
    candidates: dict[Slots, float] = {}
    for _ in range(lattice.positions):
        level: dict[Slots, float] = {}
        for slots, score in frontier.items():
            for child, edge in best(children(lattice, slots), top_k).items():
                level[child] = score + edge
        candidates |= level
        frontier = best(level, top_k)
    tree = Eagle2(top_k)(lattice, 7, nodes)
    assert paths_of(lattice, tree) == set(best(candidates, nodes - 1))


@pytest.mark.parametrize("seed", range(60))
def test_opt_tree_ends_at_the_first_level_that_gains_too_little(
    seed: int, make_lattice: MakeLattice
) -> None:
    rng = np.random.default_rng(seed)
    lattice = make_lattice(seed, int(rng.integers(1, 6)), int(rng.integers(1, 4)))
    nodes, threshold = int(rng.integers(2, 30)), float(rng.choice([0.05, 0.2, 0.5]))
    known: dict[Slots, float] = {}
    level: dict[Slots, float] = {(): 0.0}
    expected = 0.0
    for _ in range(lattice.positions):
        level = {
            child: score + edge
            for slots, score in level.items()
            for child, edge in children(lattice, slots).items()
        }
        known |= level
        before, expected = expected, sum(np.exp(list(best(known, nodes - 1).values())))
        if expected - before < threshold:
            break
    tree = OptTree(threshold)(lattice, 7, nodes)
    assert paths_of(lattice, tree) == set(best(known, nodes - 1))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_wide_or_thresholdless_they_are_best_first(
    seed: int, ties: bool, make_lattice: MakeLattice
) -> None:
    lattice = make_lattice(seed, 5, 4, ties=ties)
    expected = build_best_first(lattice, 7, 24)
    for builder in (OptTree(0.0), Eagle2(top_k=24)):
        tree = builder(lattice, 7, 24)
        for field in ("tokens", "parent", "depth", "logp"):
            np.testing.assert_array_equal(getattr(tree, field), getattr(expected, field))


def test_a_level_that_gains_just_the_threshold_is_followed_by_the_next() -> None:
    sure = Lattice(np.array([[4], [5], [6]]), np.zeros((3, 1, 1), dtype=np.float32))
    assert OptTree(1.0)(sure, 7, 4).tokens.tolist() == [7, 4, 5, 6]
    # Chances below the range of float64 gain nothing, which is not less than nothing.
    hopeless = Lattice(sure.ids, np.full((3, 1, 1), -1000, dtype=np.float32))
    assert OptTree(0.0)(hopeless, 7, 4).tokens.tolist() == [7, 4, 5, 6]


def test_a_larger_opt_tree_may_drop_a_node_of_a_smaller_one() -> None:
    # Two rows gain 0.5 on the first level, below the threshold; three gain 0.6, and go deeper.
    first, second = np.full(7, 0.1), np.full(7, 0.004)
    first[0], second[:2] = 0.4, 0.49
    edge = np.log(np.stack([np.tile(first, (7, 1)), np.tile(second, (7, 1))]))
    lattice = Lattice(np.arange(14).reshape(2, 7), edge.astype(np.float32))
    small, large = OptTree(0.55)(lattice, 99, 3), OptTree(0.55)(lattice, 99, 4)
    assert small.tokens.tolist() == [99, 0, 1]
    assert large.tokens.tolist() == [99, 0, 7, 8]


@pytest.mark.parametrize("make", [lambda: Eagle2(top_k=0), lambda: OptTree(-1.0),
                                  lambda: OptTree(float("nan"))])  # fmt: skip
def test_senseless_parameters_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError):
        make()

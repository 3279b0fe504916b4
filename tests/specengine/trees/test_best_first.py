"""Best-first trees against exhaustive enumeration, and the greedy chain against its definition."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import BestFirst, build_best_first, build_chain

MakeLattice = Callable[..., Lattice]
Path = tuple[int, ...]


def all_paths(lattice: Lattice) -> list[tuple[float, int, Path, Path]]:
    """Every path of the lattice by the documented order: score, depth, ranks; then its slots."""
    order = np.argsort(-lattice.edge, axis=-1, kind="stable")
    found = []
    for depth in range(1, lattice.positions + 1):
        for ranks in product(range(lattice.candidates), repeat=depth):
            slot, total, slots = 0, 0.0, []
            for position, rank in enumerate(ranks):
                child = int(order[position, slot, rank])
                total += min(float(lattice.edge[position, slot, child]), 0.0)
                slot = child
                slots.append(child)
            found.append((-total, depth, ranks, tuple(slots)))
    return sorted(found)


@pytest.mark.parametrize("block", range(10))
def test_equals_exhaustive_search(block: int, make_lattice: MakeLattice) -> None:
    for seed in range(100 * block, 100 * block + 100):
        rng = np.random.default_rng(seed)
        positions, candidates = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        lattice = make_lattice(seed, positions, candidates, ties=seed % 2 == 1)
        expected = all_paths(lattice)
        nodes = int(rng.integers(1, len(expected) + 4))
        tree = build_best_first(lattice, 7, nodes)
        assert len(tree) == min(nodes, len(expected) + 1)
        for node, (cost, depth, _, slots) in enumerate(expected[: nodes - 1], start=1):
            assert tree.logp[node] == np.float32(-cost)
            assert tree.depth[node] == depth
            tokens = [int(lattice.ids[position, slot]) for position, slot in enumerate(slots)]
            assert tree.tokens[tree.path(node)[1:]].tolist() == tokens


@pytest.mark.parametrize("temperature", [0.5, 1.6])
def test_a_temperature_takes_the_likeliest_paths_of_rescaled_rows(
    temperature: float, make_lattice: MakeLattice
) -> None:
    for seed in range(20):
        lattice = make_lattice(seed, 4, 3)
        scaled = lattice.edge.astype(np.float64) / temperature
        scaled -= np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
        expected = all_paths(Lattice(lattice.ids, scaled))
        tree = BestFirst(temperature)(lattice, 7, 20)
        for node, (_, _, _, slots) in enumerate(expected[:19], start=1):
            tokens = [int(lattice.ids[position, slot]) for position, slot in enumerate(slots)]
            assert tree.tokens[tree.path(node)[1:]].tolist() == tokens


def test_a_lattice_smaller_than_the_budget_gives_all_its_paths(make_lattice: MakeLattice) -> None:
    assert len(build_best_first(make_lattice(3, 2, 3), 7, 256)) == 1 + 3 + 9


def test_a_score_rounded_above_zero_gains_nothing() -> None:
    edge = np.full((3, 1, 1), 1e-6, dtype=np.float32)
    lattice = Lattice(ids=np.array([[1], [2], [3]]), edge=edge)
    assert build_best_first(lattice, 7, 4).logp.tolist() == [0.0, 0.0, 0.0, 0.0]
    assert build_chain(lattice, 7, 4).logp.tolist() == [0.0, 0.0, 0.0, 0.0]


def test_chain_follows_the_best_edge_of_the_previous_pick() -> None:
    edge = np.log(np.array([[[0.4, 0.6], [0.4, 0.6]], [[0.9, 0.1], [0.5, 0.5]]], dtype=np.float32))
    lattice = Lattice(ids=np.array([[10, 11], [20, 21]]), edge=edge)
    # Slot 1 first; its own row ties, so the lower slot follows.
    assert build_chain(lattice, 7, 8).tokens.tolist() == [7, 11, 20]
    assert build_chain(lattice, 7, 2).tokens.tolist() == [7, 11]


def test_the_parent_decides_which_child_is_likely() -> None:
    edge = np.log(np.array([[[0.55, 0.45]] * 2, [[0.99, 0.01], [0.01, 0.99]]], dtype=np.float32))
    lattice = Lattice(ids=np.array([[10, 11], [20, 21]]), edge=edge)
    tree = build_best_first(lattice, 7, 5)
    paths = {tuple(tree.tokens[tree.path(node)[1:]].tolist()) for node in range(1, 5)}
    assert paths == {(10,), (10, 20), (11,), (11, 21)}

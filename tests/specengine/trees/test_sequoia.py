"""Sequoia's dynamic program against every static tree, and its layout over a lattice."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import Sequoia
from specengine.trees.sequoia import static_tree

MakeLattice = Callable[..., Lattice]


def expected_tokens(acceptance: np.ndarray, parents: tuple[int, ...], ranks: tuple[int, ...],
                    depths: tuple[int, ...]) -> float:  # fmt: skip
    chance = [1.0]
    for parent, rank, depth in zip(parents[1:], ranks[1:], depths[1:], strict=True):
        chance.append(chance[parent] * acceptance[depth - 1, rank])
    return sum(chance) - 1


def best_of_all(acceptance: np.ndarray, nodes: int) -> float:
    """Try every way to share nodes among children taken without gaps."""
    depth, width = acceptance.shape

    @cache
    def below(level: int, rank: int, left: int) -> float:
        if level == depth or rank == width or left == 0:
            return 0.0
        return max(
            0.0,
            *(
                acceptance[level, rank] * (1 + below(level + 1, 0, own - 1))
                + below(level, rank + 1, left - own)
                for own in range(1, left + 1)
            ),
        )

    return below(0, 0, nodes - 1)


@pytest.mark.parametrize("seed", range(40))
def test_the_static_tree_is_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acceptance = rng.uniform(0.01, 0.9, (int(rng.integers(1, 5)), int(rng.integers(1, 5))))
    nodes = int(rng.integers(2, 20))
    planned = static_tree(tuple(map(tuple, acceptance)), *acceptance.shape, nodes)
    assert 2 <= len(planned[0]) <= nodes
    assert expected_tokens(acceptance, *planned) == pytest.approx(best_of_all(acceptance, nodes))


@pytest.mark.parametrize("seed", range(20))
def test_with_falling_acceptance_it_is_the_nodes_that_are_likeliest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    acceptance = -np.sort(-rng.uniform(0.01, 0.5, (4, 4)), axis=1)
    chances = [1.0]
    every = []
    for level in range(4):
        chances = [chance * p for chance in chances for p in acceptance[level]]
        every += chances
    planned = static_tree(tuple(map(tuple, acceptance)), 4, 4, 25)
    assert expected_tokens(acceptance, *planned) == pytest.approx(sum(sorted(every)[-24:]))


def test_ranks_follow_the_parent(make_lattice: MakeLattice) -> None:
    lattice = make_lattice(3, 2, 3)
    tree = Sequoia(((0.5, 0.3, 0.1), (0.6, 0.2, 0.1)))(lattice, 7, 6)
    # Chances: 0.5, 0.3, 0.3 (rank 0 below rank 0), 0.18 (below rank 1), 0.1 twice.
    first = np.argsort(-lattice.edge[0, 0], kind="stable")
    assert tree.tokens[1] == lattice.ids[0, first[0]]
    assert tree.tokens[2] == lattice.ids[0, first[1]]
    for node in (3, 4):
        parent_slot = int(first[node - 3])
        child = int(lattice.edge[1, parent_slot].argmax())
        assert tree.parent[node] == node - 2
        assert tree.tokens[node] == lattice.ids[1, child]
    assert len(tree) == 6


def test_a_larger_tree_may_drop_a_node_of_a_smaller_one() -> None:
    # Two children add 0.55; one child with both of its own adds 0.3 (1 + 0.95) = 0.585.
    acceptance = ((0.3, 0.25), (0.05, 0.9))
    assert static_tree(acceptance, 2, 2, 3)[2] == (0, 1, 1)
    assert static_tree(acceptance, 2, 2, 4)[2] == (0, 1, 2, 2)


def test_a_lattice_smaller_than_the_table_cuts_the_tree(make_lattice: MakeLattice) -> None:
    acceptance = tuple((0.5, 0.2, 0.1) for _ in range(6))
    tree = Sequoia(acceptance)(make_lattice(0, 2, 2), 7, 50)
    assert len(tree) == 1 + 2 + 4


@pytest.mark.parametrize(
    "wrong", [(), ((),), ((0.5,), (0.5, 0.1)), ((0.5, 0.0),), ((1.5,),), ((float("nan"),),)]
)
def test_what_is_no_table_is_refused(wrong: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(OptionError, match="sequoia acceptance"):
        Sequoia(wrong)

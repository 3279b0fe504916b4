"""The contract of every tree builder, on random lattices with and without ties."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import (
    TREES,
    BestFirst,
    CaDDTree,
    Calibrated,
    DraftTree,
    Eagle2,
    OptTree,
    Oracle,
    Sequoia,
    StepCost,
    TreeBuilder,
    build,
)

ANCHOR = 7
# Not monotone over depth or rank on purpose: nothing may rely on that.
CURVES = np.random.default_rng(0).uniform(-4, 0, (3, 2, 40))
ACCEPTANCE = tuple(tuple(row) for row in np.random.default_rng(1).uniform(0.05, 0.5, (6, 5)))
ALL: dict[str, TreeBuilder] = {
    **{name: kind.builder for name, kind in TREES.items() if kind.builder is not None},
    "best_first at 1.4": BestFirst(1.4),
    "best_first at 0.3": BestFirst(0.3),
    "eagle2 top 1": Eagle2(top_k=1),
    "eagle2 top 9": Eagle2(top_k=9),
    "opt_tree 0.1": OptTree(0.1),
    "caddtree": CaDDTree(StepCost(1.0, ((1.0, 0.002), (8.0, 0.01)))),
    "calibrated": Calibrated(CURVES),
    "sequoia": Sequoia(ACCEPTANCE),
    "oracle": Oracle(range(0, 1000, 3)),
}
shapes = st.tuples(
    st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(1, 40)
)
every_builder = pytest.mark.parametrize("name", sorted(ALL))
nested_builders = pytest.mark.parametrize(
    "name", sorted(name for name, builder in ALL.items() if builder.nested)
)
fixture_ok = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MakeLattice = Callable[..., Lattice]
Shape = tuple[int, int, int, bool, int]


def built(name: str, shape: Shape, make_lattice: MakeLattice) -> tuple[Lattice, DraftTree]:
    seed, positions, candidates, ties, nodes = shape
    lattice = make_lattice(seed, positions, candidates, ties=ties)
    return lattice, ALL[name](lattice, ANCHOR, nodes)


@every_builder
@given(shape=shapes)
@fixture_ok
def test_is_a_tree_in_topological_order(name: str, shape: Shape, make_lattice: MakeLattice) -> None:
    lattice, tree = built(name, shape, make_lattice)
    assert 1 <= len(tree) <= shape[-1]
    assert (tree.tokens[0], tree.parent[0], tree.depth[0], tree.logp[0]) == (ANCHOR, -1, 0, 0)
    for node in range(1, len(tree)):
        parent = int(tree.parent[node])
        assert 0 <= parent < node
        assert tree.depth[node] == tree.depth[parent] + 1 <= lattice.positions
        assert tree.tokens[node] in lattice.ids[tree.depth[node] - 1]
        assert tree.logp[node] <= tree.logp[parent] <= 0


@every_builder
@pytest.mark.parametrize("lowest", [-1e3, -1e19, -5e37])
@pytest.mark.filterwarnings("error")
def test_scores_beyond_every_probability_are_ordered_like_others(
    name: str, lowest: float, make_lattice: MakeLattice
) -> None:
    lattice = make_lattice(5, 4, 4)
    lattice.edge[:, :, 2:] = lowest
    tree = ALL[name](lattice, ANCHOR, 30)
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    if name in ("oracle", "calibrated"):
        # These do not order siblings by their scores.
        return
    # What is all but impossible comes after its likely siblings.
    for node in range(1, len(tree)):
        depth = tree.depth[node] - 1
        if tree.tokens[node] in lattice.ids[depth, 2:]:
            siblings = np.flatnonzero(tree.parent == tree.parent[node])
            assert set(lattice.ids[depth, :2]) <= set(tree.tokens[siblings].tolist())


@every_builder
@given(shape=shapes)
@fixture_ok
def test_siblings_are_distinct(name: str, shape: Shape, make_lattice: MakeLattice) -> None:
    _, tree = built(name, shape, make_lattice)
    children = list(zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(children)) == len(children)


@nested_builders
@given(shape=shapes)
@fixture_ok
def test_is_nested_in_the_budget(name: str, shape: Shape, make_lattice: MakeLattice) -> None:
    lattice, tree = built(name, shape, make_lattice)
    for nodes in range(1, len(tree) + 1):
        smaller = ALL[name](lattice, ANCHOR, nodes)
        assert len(smaller) == nodes
        for field in ("tokens", "parent", "depth", "logp"):
            np.testing.assert_array_equal(getattr(smaller, field), getattr(tree, field)[:nodes])


@every_builder
@given(shape=shapes)
@fixture_ok
def test_logp_sums_the_edges_of_the_path(
    name: str, shape: Shape, make_lattice: MakeLattice
) -> None:
    lattice, tree = built(name, shape, make_lattice)
    for node in range(1, len(tree)):
        slot, total = 0, 0.0
        for step in tree.path(node)[1:]:
            position = int(tree.depth[step]) - 1
            child = int(np.flatnonzero(lattice.ids[position] == tree.tokens[step])[0])
            total += float(lattice.edge[position, slot, child])
            slot = child
        assert tree.logp[node] == pytest.approx(total, abs=1e-5)


@every_builder
@given(shape=shapes)
@fixture_ok
def test_equal_lattices_give_equal_trees(
    name: str, shape: Shape, make_lattice: MakeLattice
) -> None:
    lattice, tree = built(name, shape, make_lattice)
    again = ALL[name](Lattice(lattice.ids.copy(), lattice.edge.copy()), ANCHOR, shape[-1])
    for field in ("tokens", "parent", "depth", "logp"):
        np.testing.assert_array_equal(getattr(again, field), getattr(tree, field))


@every_builder
def test_one_node_is_the_root_alone(name: str, make_lattice: MakeLattice) -> None:
    tree = ALL[name](make_lattice(0, 4, 4), ANCHOR, 1)
    assert tree.tokens.tolist() == [ANCHOR]
    assert tree.parent.tolist() == [-1]


@every_builder
def test_dtypes(name: str, make_lattice: MakeLattice) -> None:
    tree = ALL[name](make_lattice(0, 4, 4), ANCHOR, 9)
    assert [a.dtype for a in (tree.tokens, tree.parent, tree.depth, tree.logp)] == [
        np.int64,
        np.int32,
        np.int32,
        np.float32,
    ]


@every_builder
@pytest.mark.parametrize("nodes", [0, -3])
def test_a_budget_without_room_for_the_root_is_refused(
    name: str, nodes: int, make_lattice: MakeLattice
) -> None:
    with pytest.raises(OptionError, match="option 'nodes'"):
        ALL[name](make_lattice(0, 2, 2), ANCHOR, nodes)


def test_every_tree_of_the_registry_is_here() -> None:
    assert set(TREES) <= set(ALL)


def test_an_unknown_name_is_refused_with_the_nearest(make_lattice: MakeLattice) -> None:
    with pytest.raises(OptionError, match="did you mean 'best_first'"):
        build("bestfirst", make_lattice(0, 2, 2), ANCHOR, 4)

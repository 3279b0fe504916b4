"""Greedy acceptance against a naive recursive walk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.trees import DraftTree
from specengine.verify.acceptance import accept_greedy


@st.composite
def trees_with_argmax(draw: st.DrawFn) -> tuple[DraftTree, np.ndarray]:
    """Draw a tree with distinct siblings over five tokens, and the target's argmax per node."""
    parents, depth, tokens = [-1], [0], [draw(st.integers(0, 4))]
    taken: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, 12))):
        parent, token = draw(st.integers(0, len(parents) - 1)), draw(st.integers(0, 4))
        if (parent, token) not in taken:
            taken.add((parent, token))
            parents.append(parent)
            depth.append(depth[parent] + 1)
            tokens.append(token)
    nodes = len(tokens)
    argmax = draw(st.lists(st.integers(0, 4), min_size=nodes, max_size=nodes))
    tree = DraftTree(
        tokens=np.array(tokens, dtype=np.int64),
        parent=np.array(parents, dtype=np.int32),
        depth=np.array(depth, dtype=np.int32),
        logp=np.zeros(nodes, dtype=np.float32),
    )
    return tree, np.array(argmax, dtype=np.int64)


def walk(tree: DraftTree, argmax: np.ndarray, node: int) -> list[int]:
    for child in range(len(tree)):
        if tree.parent[child] == node and tree.tokens[child] == argmax[node]:
            return [node, *walk(tree, argmax, child)]
    return [node]


@settings(deadline=None)
@given(trees_with_argmax())
def test_equals_a_naive_walk(case: tuple[DraftTree, np.ndarray]) -> None:
    tree, argmax = case
    accepted = accept_greedy(tree, argmax)
    assert accepted.rows == walk(tree, argmax, 0)
    assert accepted.tokens == argmax[accepted.rows].tolist()
    assert accepted.tokens[:-1] == tree.tokens[accepted.rows[1:]].tolist()


def test_a_root_alone_yields_the_bonus_token() -> None:
    root = DraftTree(
        tokens=np.array([3]),
        parent=np.array([-1], dtype=np.int32),
        depth=np.array([0], dtype=np.int32),
        logp=np.zeros(1, dtype=np.float32),
    )
    accepted = accept_greedy(root, np.array([9]))
    assert (accepted.rows, accepted.tokens) == ([0], [9])
    with pytest.raises(ValueError, match="1 nodes"):
        accept_greedy(root, np.array([9, 9]))

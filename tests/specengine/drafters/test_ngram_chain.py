"""Look-ups in the request's own tokens, and the chain that they append to a tree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.drafters.ngram import LONGEST, SHORTEST, TokenHistory, attach_chain
from specengine.lattice import Lattice
from specengine.trees import DraftTree, build


def _history(*tokens):
    history = TokenHistory()
    history.extend(list(tokens))
    return history


def _plain(tokens, path, length):
    """The newest earlier end of the longest run, found by looking everywhere."""
    text = tokens + path
    for size in range(LONGEST, SHORTEST - 1, -1):
        for end in range(len(tokens), size - 1, -1):
            if size <= len(text) and tokens[end - size : end] == text[-size:]:
                return text[end : end + length]
    return []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.integers(1, 6), st.integers(0, 30),
)  # fmt: skip
def test_lookups_equal_a_search(tokens, path, length, cut):
    history = TokenHistory()
    history.extend(tokens[:cut])
    history.continuation(path, length)
    history.extend(tokens[cut:])
    assert history.continuation(path, length) == _plain(tokens, path, length)


def test_the_longest_and_then_the_newest_match_counts():
    history = _history(1, 2, 3, 9, 2, 3, 8, 2, 3)
    assert history.continuation([8], 2) == [2, 3]
    assert history.continuation([4], 2) == []
    assert _history(1, 2, 3, 9, 5, 2, 3, 8).continuation([1, 2, 3], 2) == [9, 5]
    history.clear()
    assert len(history) == 0
    assert history.continuation([2, 3], 2) == []


def _tree(nodes, seed=0, positions=4):
    draw = np.random.default_rng(seed)
    edge = draw.normal(size=(positions, 3, 3))
    edge[0] = edge[0, :1]
    edge -= np.log(np.exp(edge).sum(-1, keepdims=True))
    ids = np.stack([draw.permutation(50)[:3] + 100 for _ in range(positions)])
    return build("best_first", Lattice(ids, edge.astype(np.float32)), 7, nodes)


@pytest.mark.parametrize("nodes", [2, 5, 9, 40])
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("depth", [1, 3, 12])
def test_the_result_is_a_tree_within_its_budget(nodes, rows, depth):
    tree = _tree(nodes, positions=min(4, depth))
    for path in (tree.path(int(node)) for node in range(len(tree))):
        words = tree.tokens[path].tolist()
        history = _history(*([1, *words, 60, 61, 62, 63] * 2))
        longer = attach_chain(tree, history, rows=rows, nodes=nodes, depth=depth)
        _check(longer, nodes, depth)


def _check(tree: DraftTree, nodes: int, depth: int) -> None:
    assert 1 <= len(tree) <= nodes
    assert tree.parent[0] == -1
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    assert (tree.depth[1:] == tree.depth[tree.parent[1:]] + 1).all()
    assert (tree.logp[1:] <= tree.logp[tree.parent[1:]]).all()
    assert tree.depth.max() <= depth
    pairs = list(zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    for name, kind in (("tokens", np.int64), ("parent", np.int32), ("depth", np.int32),
                       ("logp", np.float32)):  # fmt: skip
        assert getattr(tree, name).dtype == kind


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_the_chain_takes_the_last_rows_of_a_full_tree(rows):
    tree = _tree(8)
    kept = 8 - rows
    best = max(range(kept), key=lambda node: (int(tree.depth[node]), float(tree.logp[node])))
    words = tree.tokens[tree.path(best)].tolist()
    history = _history(5, *words, *range(60, 70), 5)
    longer = attach_chain(tree, history, rows=rows, nodes=8, depth=12)
    path = longer.path(7)
    assert len(longer) == 8
    assert longer.tokens[:kept].tolist() == tree.tokens[:kept].tolist()
    assert path[-rows:] == list(range(kept, 8))


def test_the_chain_hangs_below_the_best_path():
    tree = _tree(6)
    words = [7]
    node = 0
    while len(children := np.flatnonzero(tree.parent == node)):
        node = int(children[tree.logp[children].argmax()])
        words.append(int(tree.tokens[node]))
    longer = attach_chain(tree, _history(*words, 60, 61, 62), rows=2, nodes=8, depth=12)
    assert len(longer) == 8
    assert longer.tokens[:6].tolist() == tree.tokens.tolist()
    assert longer.tokens[6:].tolist() == [60, 61]
    assert longer.parent[6:].tolist() == [node, 6]
    assert longer.logp[6:].tolist() == [tree.logp[node]] * 2
    assert attach_chain(tree, _history(1, 2, 3), rows=2, nodes=8, depth=12) is tree

"""EAGLE-3 against a plain reference: chain, lattice and grown tree."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from specengine.drafters import eagle3
from specengine.drafters.expansion import grown_tree
from specengine.drafters.loading import drafter_of
from specengine.errors import RequestError
from specengine.trees import build

_spec = importlib.util.spec_from_file_location(
    "reference_eagle3", Path(__file__).with_name("reference_eagle3.py")
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
ROWS, ANCHOR = 5, 7


@pytest.fixture(params=["eagle3", "eagle3-own"])
def drafter(request, make_kind, target, monkeypatch):
    monkeypatch.setattr(eagle3, "BRANCHES", 3)
    return drafter_of(make_kind(request.param, target), target)


@pytest.fixture
def state(drafter):
    drafter_state = drafter.new_state(ROWS)
    drafter.extend(drafter_state, *_context())
    return drafter_state


def _context():
    tapped = torch.randn(ROWS, 128, generator=torch.Generator().manual_seed(1))
    return tapped, np.arange(ROWS) + 20


@pytest.fixture
def after(drafter):
    """`after(path)`: log-probabilities by draft id, by the reference, each path once."""
    tapped, tokens = _context()
    known = {}

    def scores(*path):
        if path not in known:
            known[path] = reference.scores(
                drafter.network, drafter.vocabulary, tapped, tokens.tolist(), path
            )
        return known[path]

    return scores


def _target_ids(drafter, ids):
    return drafter.vocabulary.target_ids(torch.as_tensor(ids)).tolist()


@pytest.mark.parametrize(
    "drafter", ["eagle3", "eagle3-own", "eagle3-residual", "eagle3-normed"], indirect=True
)
def test_the_chain_of_the_lattice_is_the_drafters_own(drafter, state, after):
    lattice = drafter.draft(state, ANCHOR, 4).check()
    path = [ANCHOR]
    for position in range(4):
        scores = after(*path)
        ids = lattice.ids[position].tolist()
        draft_ids = [_target_ids(drafter, range(drafter.vocabulary.size)).index(i) for i in ids]
        slot = 0 if position == 0 else lattice.ids[position - 1].tolist().index(path[-1])
        wanted = scores[draft_ids].log_softmax(-1).numpy()
        np.testing.assert_allclose(lattice.edge[position, slot], wanted, atol=1e-4)
        path += _target_ids(drafter, [int(scores.argmax())])
    assert build("chain", lattice, ANCHOR, 5).tokens.tolist() == path


def test_the_chain_does_not_depend_on_the_other_candidates(drafter, state, monkeypatch):
    for anchor in range(61):
        chains = []
        for branches in (1, 2, 6):
            monkeypatch.setattr(eagle3, "BRANCHES", branches)
            lattice = drafter.draft(state, anchor, 5)
            chains.append((build("chain", lattice, anchor, 6).tokens.tolist(), lattice.ids[:, 0]))
        assert chains[0][0] == chains[1][0] == chains[2][0]
        # It stands in slot 0, so that recordings of any width hold it.
        assert all(first.tolist() == chain[1:] for chain, first in chains)


def test_grown_trees_hold_the_scores_of_their_paths(drafter, state, after):
    tree = drafter.grow(state, ANCHOR, 3, 12)
    ids = _target_ids(drafter, range(drafter.vocabulary.size))
    for node in range(1, len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        total = sum(float(after(*path[:i])[ids.index(path[i])]) for i in range(1, len(path)))
        assert abs(tree.logp[node] - total) < 1e-4


def test_grown_nodes_are_conditioned_on_their_own_path(drafter, state):
    ids = _target_ids(drafter, range(drafter.vocabulary.size))
    for anchor in range(0, 60, 6):
        tree = drafter.grow(state, anchor, 4, 30)
        for node in range(1, len(tree)):
            path, total, row = tree.tokens[tree.path(node)], 0.0, torch.zeros(1, dtype=torch.int64)
            steps = eagle3.Steps(drafter, state, anchor, 4)
            with torch.inference_mode():
                logits, hidden = steps.first()
                for token in path[1:]:
                    total += float(logits.log_softmax(-1)[0, ids.index(token)])
                    logits, hidden = steps.next(torch.tensor([token]), hidden, row)
            assert abs(tree.logp[node] - total) < 1e-4


def test_grown_trees_are_those_of_a_plain_search(drafter, state, after):
    """Three branches, three levels: expand the three best of a level, keep the best of all."""
    ids = _target_ids(drafter, range(drafter.vocabulary.size))
    level, found = [((ANCHOR,), 0.0)], []
    for _ in range(3):
        children = []
        for path, total in level:
            top = after(*path).topk(3)
            children += [
                ((*path, ids[i]), total + float(score))
                for score, i in zip(top.values, top.indices.tolist(), strict=True)
            ]
        found += children
        level = sorted(children, key=lambda entry: -entry[1])[:3]
    best = sorted(found, key=lambda entry: -entry[1])
    for nodes in (1, 2, 5, 9, 30):
        tree = drafter.grow(state, ANCHOR, 3, nodes)
        assert len(tree) == min(nodes, len(found) + 1)
        paths = {tuple(tree.tokens[tree.path(node)].tolist()) for node in range(1, len(tree))}
        assert paths == {path for path, _ in best[: nodes - 1]}
        assert (tree.parent[1:] < np.arange(1, len(tree))).all()


class CertainSteps:
    """Each step is sure of one token, so that a child is as likely as its parent."""

    def first(self):
        return self._logits(1), torch.zeros(1, 4)

    def next(self, tokens, hidden, parents):
        return self._logits(len(tokens)), torch.zeros(len(tokens), 4)

    @staticmethod
    def _logits(rows):
        logits = torch.zeros(rows, 61)
        logits[:, 5] = 1e4
        return logits


@pytest.mark.parametrize("nodes", range(1, 9))
def test_parents_come_before_children_that_are_as_likely(nodes, drafter):
    drafter.vocabulary.offsets = None
    tree = grown_tree(CertainSteps(), drafter.vocabulary, ANCHOR, 4, nodes, 3)
    assert len(tree) == nodes
    assert (tree.parent[1:] < np.arange(1, nodes)).all()
    assert (tree.parent[1:] >= 0).all()
    assert tree.tokens[:5].tolist() == [ANCHOR, 5, 5, 5, 5][:nodes]


def test_long_prompts_in_parts_equal_one_pass(drafter, state, monkeypatch):
    whole = drafter.draft(state, ANCHOR, 4)
    monkeypatch.setattr(eagle3, "_CHUNK", 2)
    again = drafter.new_state(ROWS)
    drafter.extend(again, *_context())
    parts = drafter.draft(again, ANCHOR, 4)
    assert parts.ids.tolist() == whole.ids.tolist()
    np.testing.assert_allclose(parts.edge, whole.edge, atol=1e-4)


def test_drafts_without_context_or_end_are_refused(drafter, state):
    with pytest.raises(RequestError, match="holds no context"):
        drafter.draft(drafter.new_state(3), ANCHOR, 2)
    with pytest.raises(RequestError, match="at most 64"):
        drafter.draft(state, ANCHOR, 65)


def test_no_pass_leaves_attention_to_kernels_that_plan_for_every_length(drafter, state, planning):
    drafter.draft(state, ANCHOR, 3)
    assert planning
    assert not any(planning)

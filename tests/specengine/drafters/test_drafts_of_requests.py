"""A request's drafts are its own: other requests, before it or beside it, change none of them.

Its output would not show it. A draft from another request's context is merely rejected, and speed
falls as soon as requests run side by side.
"""

import numpy as np
import pytest

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters.loading import drafter_of
from specengine.models import Target

PROMPTS = [np.random.default_rng(seed).integers(3, 61, 4 + 5 * seed).tolist() for seed in range(3)]
LIMIT = 8


class Watched:
    """An engine that notes which tree each step of a request verified."""

    def __init__(self, target, network, options):
        self.engine = Engine(target, drafter_of(network, target), EngineOptions(**options), slots=3)
        self.trees = []
        self.deepest = []
        proposer = self.engine._step.proposer
        propose = proposer.propose

        def noting(*arguments):
            tree = propose(*arguments)
            self.trees.append((tree.tokens.tolist(), tree.parent.tolist()))
            self.deepest.append(int(tree.depth.max()))
            return tree

        proposer.propose = noting

    def start(self, prompt):
        return self.engine.start(prompt, LIMIT, ignore_eos=True)

    def step(self, session):
        """The trees of one step; none of a prefill."""
        self.trees = []
        session.step()
        return self.trees

    def drafts(self, prompt):
        session, found = self.start(prompt), []
        while session.finish_reason is None:
            found += self.step(session)
        return found


@pytest.fixture
def watching(make_kind, tiny_model):
    def make(kind, **options):
        target = Target(tiny_model("llama", seed=1))
        network = make_kind(kind, target)
        target.taps = network.config.target_layer_ids
        tree = "own" if kind == "eagle3" else "best_first"
        return lambda: Watched(target, network, {"tree": tree, "nodes": 6, **options})

    return make


@pytest.fixture
def watched(kind, watching):
    return watching(kind)


def test_requests_side_by_side_draft_as_they_do_alone(watched):
    alone = [watched().drafts(prompt) for prompt in PROMPTS]
    assert all(len(drafts) > 1 for drafts in alone)
    together = watched()
    sessions = [together.start(prompt) for prompt in PROMPTS]
    found = [[] for _ in PROMPTS]
    while any(session.finish_reason is None for session in sessions):
        for drafts, session in zip(found, sessions, strict=True):
            drafts += together.step(session)
    assert found == alone


def test_memory_of_ended_and_left_requests_does_not_show(watched):
    fresh = watched().drafts(PROMPTS[0])
    used = watched()
    used.drafts(PROMPTS[2])
    left = used.start(PROMPTS[1])
    for _ in range(3):
        used.step(left)
    left.close()
    assert used.drafts(PROMPTS[0]) == fresh
    # Behind a prompt that begins as another one did, nothing of it is taken over.
    again = PROMPTS[0] + [5]
    assert used.drafts(again) == watched().drafts(again)


def test_nothing_is_looked_up_in_what_ended_requests_said(watching):
    watched = watching("dflash", ngram=5)
    fresh = watched().drafts(PROMPTS[2])
    used = watched()
    for _ in range(2):
        assert used.drafts(PROMPTS[2]) == fresh


@pytest.mark.parametrize("kind", ["dflash", "eagle3"])
def test_no_row_lies_deeper_than_the_last_token_that_may_come(watching, kind):
    watched = watching(kind, positions=12, nodes=96)()
    prompt = [3] * (watched.engine.target.max_positions - LIMIT)
    drafts = watched.drafts(prompt)
    left = range(LIMIT - 2, LIMIT - 2 - len(drafts), -1)
    assert all(deepest <= most for deepest, most in zip(watched.deepest, left, strict=True))

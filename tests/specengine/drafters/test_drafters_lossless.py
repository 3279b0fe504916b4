"""Every kind of drafter gives the text of plain greedy decoding, on every family, in float32.

Random drafters are never right, so a double at the drafter's edge mixes the right tokens into
what it proposes; the drafter itself sees every commit that follows from that.
"""

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters.loading import drafter_of
from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.models import Target

LIMIT = 14
PROMPT = np.random.default_rng(5).integers(3, 61, 11).tolist()
SHAPES = {
    "chain": {"tree": "chain"},
    "tree": {"tree": "best_first", "nodes": 9, "positions": 6},
    "ngram": {"tree": "best_first", "nodes": 9, "ngram": 4},
}
CASES = [
    *((family, "tree") for family in ("gemma3", "llama", "qwen2", "qwen3", "qwen3_5")),
    ("llama", "chain"), ("qwen3_5", "chain"), ("gemma3", "ngram"), ("qwen3_5", "ngram"),
]  # fmt: skip
"""Trees on every family; the other shapes where windows or recurrent layers meet them."""


class Helped:
    """A drafter whose lattice is replaced by one that knows the text in two of three drafts."""

    def __init__(self, inner, text: list[int]) -> None:
        self.inner, self.text = inner, text
        self.kind, self.taps = inner.kind, inner.taps
        self.trained_positions = inner.trained_positions
        self.drafts: list[tuple[int, int, Lattice]] = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def draft(self, state, anchor: int, positions: int) -> Lattice:
        lattice = self.inner.draft(state, anchor, positions)
        self.drafts.append((state.length, anchor, lattice))
        known = self.text[state.length + 1 :][:positions]
        if len(self.drafts) % 3 == 0 or len(known) < positions:
            return lattice
        ids = np.array(known)[:, None]
        return Lattice(ids, np.zeros((positions, 1, 1), dtype=np.float32))


@pytest.fixture(scope="module")
def greedy(tiny_model):
    """Greedy text by the family's own modelling code."""
    known = {}

    def text(family):
        if family not in known:
            model, tokens = tiny_model(family), PROMPT
            with torch.inference_mode():
                for _ in range(LIMIT):
                    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
                    tokens = [*tokens, int(logits.argmax())]
            known[family] = tokens
        return known[family]

    return text


def _target(tiny_model, family) -> Target:
    target = Target(tiny_model(family), taps=(0,))
    target.eos_token_ids = frozenset()
    return target


def _run(engine) -> list[int]:
    session, output = engine.start(PROMPT, LIMIT), []
    while session.finish_reason is None:
        output += session.step()
    return output


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_every_drafter_gives_the_greedy_text(family, kind, shape, tiny_model, greedy, make_kind):
    target, text = _target(tiny_model, family), greedy(family)
    drafter = Helped(drafter_of(make_kind(kind, target), target), text)
    target.taps = drafter.taps
    engine = Engine(target, drafter, EngineOptions(**SHAPES[shape]))
    for _ in range(2):
        assert _run(engine) == text[len(PROMPT) :]
    assert engine.counters.emitted_tokens / engine.counters.steps > 1.3
    for length, anchor, lattice in drafter.drafts[:: len(drafter.drafts) // 3 + 1]:
        assert text[length] == anchor
        _check_from_scratch(drafter.inner, target, text, length, lattice)


def _check_from_scratch(drafter, target, text, length, lattice):
    """What the engine's commits led to equals the drafter's view of the whole text."""
    cache = target.new_cache(64)
    features = target.forward(cache, torch.tensor(text[:length])).features
    state = drafter.new_state(64)
    drafter.extend(state, features, np.array(text[:length]))
    fresh = drafter.draft(state, text[length], lattice.positions)
    assert fresh.ids.tolist() == lattice.ids.tolist()
    np.testing.assert_allclose(fresh.edge, lattice.edge, atol=2e-4)


@pytest.mark.parametrize("name", ["eagle3", "eagle3-own"])
def test_trees_of_the_drafters_own_steps(family, name, tiny_model, greedy, make_kind):
    target, text = _target(tiny_model, family), greedy(family)
    drafter = drafter_of(make_kind(name, target), target)
    target.taps = drafter.taps
    engine = Engine(target, drafter, EngineOptions(tree="own", nodes=12, ngram=3))
    assert _run(engine) == text[len(PROMPT) :]
    assert engine.counters.activations["own_tree"] > 0
    recording = engine.record(PROMPT, LIMIT, 4)
    assert recording.tokens.tolist() == text[len(PROMPT) :]


@pytest.mark.parametrize("confidence", [0.3, 0.999])
def test_drafts_cut_by_confidence(family, confidence, tiny_model, greedy, make_kind):
    target, text = _target(tiny_model, family), greedy(family)
    drafter = drafter_of(make_kind("dspark", target), target)
    target.taps = drafter.taps
    engine = Engine(target, drafter, EngineOptions(confidence=confidence))
    assert _run(engine) == text[len(PROMPT) :]
    counters = engine.counters
    assert 0 < counters.activations["confidence_cut"] <= counters.steps
    assert counters.drafted_tokens < 5 * counters.steps


def test_options_that_a_drafter_cannot_serve_are_refused(tiny_model, make_kind):
    target = _target(tiny_model, "llama")
    block = drafter_of(make_kind("dflash", target), target)
    with pytest.raises(OptionError, match="a dflash drafter grows no tree"):
        Engine(target, block, EngineOptions(tree="own"))
    with pytest.raises(OptionError, match="a dflash drafter estimates no acceptance"):
        Engine(target, block, EngineOptions(confidence=0.5))
    network = make_kind("dspark", target)
    network.confidence_head = None
    with pytest.raises(OptionError, match="has no confidence head"):
        Engine(target, drafter_of(network, target), EngineOptions(confidence=0.5))
    with pytest.raises(OptionError, match="nodes"):
        Engine(target, block, EngineOptions(nodes=1))

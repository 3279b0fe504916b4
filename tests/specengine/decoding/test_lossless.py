"""Every draft, good or bad, gives the output of plain greedy decoding, in float32."""

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.models import Target

LIMIT = 24


def _prompt(seed):
    return np.random.default_rng(seed).integers(3, 61, 11).tolist()


@pytest.fixture(scope="module")
def greedy(make_target, tiny_model):
    """Greedy text by the family's own modelling code, without any of our caches."""
    known = {}

    def text(family):
        if family not in known:
            model = tiny_model(family)
            tokens = _prompt(5)
            with torch.inference_mode():
                for _ in range(LIMIT):
                    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
                    tokens = [*tokens, int(logits.argmax())]
            known[family] = tokens
        return known[family]

    return text


def test_ar_equals_the_models_own_greedy_text(family, make_target, greedy, run_request):
    engine = Engine(make_target(family), None)
    text = greedy(family)
    assert run_request(engine, text[:11], LIMIT, ignore_eos=True) == text[11:]
    counters = engine.counters
    assert (counters.steps, counters.emitted_tokens) == (LIMIT - 1, LIMIT - 1)
    assert counters.drafted_tokens == 0


@pytest.mark.parametrize("rho", [0.0, 0.6, 1.0])
def test_every_draft_gives_the_greedy_text(
    family, options, rho, make_target, greedy, knowing_drafter, run_request
):
    target = make_target(family, taps=(0,))
    text = greedy(family)
    engine = Engine(target, knowing_drafter(text, target, rho), options)
    # Twice, so that the second request runs in memory that the first one used.
    for _ in range(2):
        assert run_request(engine, text[:11], LIMIT, ignore_eos=True) == text[11:]
    counters = engine.counters
    assert counters.emitted_tokens == 2 * (LIMIT - 1)
    if rho == 1.0:
        assert counters.emitted_tokens / counters.steps > 1.7
    mechanism = {"best_first": "best_first_tree"}.get(options.tree, options.tree)
    other = "chain" if mechanism != "chain" else "best_first_tree"
    assert 0 < counters.activations[mechanism] <= counters.steps
    assert counters.activations[other] == 0
    assert (counters.activations["extended_positions"] > 0) == (options.positions > 7)


@pytest.mark.parametrize("tree", ["chain", "best_first"])
def test_a_random_drafter_changes_nothing(
    family, tree, make_target, greedy, random_drafter, run_request
):
    target = make_target(family, taps=(0,))
    engine = Engine(target, random_drafter(target), EngineOptions(tree=tree, nodes=8))
    text = greedy(family)
    assert run_request(engine, text[:11], LIMIT, ignore_eos=True) == text[11:]


def test_a_single_token_prompt_works(family, make_target, random_drafter, run_request):
    target = make_target(family, taps=(0,))
    alone = run_request(Engine(target, None), [7], 12, ignore_eos=True)
    drafted = Engine(target, random_drafter(target), EngineOptions(tree="best_first", nodes=16))
    assert run_request(drafted, [7], 12, ignore_eos=True) == alone


@pytest.mark.parametrize("layout", [{"linear": "prepacked"}, {"fused_projections": True}])
def test_weight_layouts_change_nothing_and_are_counted(
    family, layout, tiny_model, greedy, knowing_drafter, run_request
):
    options = EngineOptions(tree="best_first", nodes=12, **layout)
    target = Target(tiny_model(family), taps=(0,), options=options)
    text = greedy(family)
    engine = Engine(target, knowing_drafter(text, target, 0.7), options)
    assert run_request(engine, text[:11], LIMIT, ignore_eos=True) == text[11:]
    counters = engine.counters
    counted = {name for name, count in counters.activations.items() if count == counters.steps}
    named = {"linear": "prepacked_linear", "fused_projections": "fused_projections"}
    assert {named[key] for key in layout} <= counted
    assert len(counted & set(named.values())) <= 1

"""Tree passes against one-token steps of the same target, on every family in float32."""

import numpy as np
import pytest
import torch

from specengine.models import Target
from specengine.trees.draft_tree import DraftTree
from specengine.verify.acceptance import accept_greedy

WINDOW = 8
CAPACITY = 96


def _poisoned_cache(target):
    cache = target.new_cache(CAPACITY)
    cache.keys_values.fill_(float("nan"))
    return cache


def _steps(target, tokens):
    """Logits after each token, fed one at a time, and the cache."""
    cache = _poisoned_cache(target)
    logits = []
    for token in tokens:
        forward = target.forward(cache, torch.tensor([token]))
        target.commit(cache, [0])
        logits.append(target.logits(forward.hidden)[0])
    return torch.stack(logits), cache


def _prefilled(target, prompt):
    cache = _poisoned_cache(target)
    target.forward(cache, torch.tensor(prompt))
    target.commit(cache, range(len(prompt)))
    return cache


def _assert_same_state(cache, other):
    assert cache.length == other.length
    end = cache.length
    torch.testing.assert_close(
        cache.keys_values[:, :, :end], other.keys_values[:, :, :end], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(cache.conv, other.conv, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.recurrent, other.recurrent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 20])
def test_every_row_equals_the_steps_of_its_path(family, tiny_model, tree_maker, length):
    target = Target(tiny_model(family), taps=(1, 0))
    generator = np.random.default_rng(length)
    prompt = generator.integers(3, 61, length).tolist()
    for chainy in (0.2, 0.8):
        tree = tree_maker(generator, int(generator.integers(3, 61)), 21, chainy)
        cache = _prefilled(target, prompt)
        forward = target.forward(cache, torch.as_tensor(tree.tokens), tree)
        logits = target.logits(forward.hidden)
        assert forward.features.shape == (21, 2 * target.hidden_size)
        for node in {20, 13, int(tree.depth.argmax())}:
            path = tree.path(node)
            want, steps = _steps(target, [*prompt, *tree.tokens[path].tolist()])
            torch.testing.assert_close(logits[path], want[length:], rtol=1e-4, atol=1e-4)
        target.commit(cache, path)
        _assert_same_state(cache, steps)


def test_pass_over_a_prompt_equals_its_steps(family, tiny_model):
    target = Target(tiny_model(family))
    prompt = np.random.default_rng(2).integers(3, 61, 75).tolist()
    want, steps = _steps(target, prompt)
    cache = _poisoned_cache(target)
    logits = target.logits(target.forward(cache, torch.tensor(prompt)).hidden)
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)
    target.commit(cache, range(75))
    _assert_same_state(cache, steps)


def test_pass_over_a_prompt_equals_transformers(family, tiny_model):
    prompt = torch.as_tensor(np.random.default_rng(4).integers(3, 61, 30))
    with torch.no_grad():
        want = tiny_model(family)(prompt[None]).logits[0]
    target = Target(tiny_model(family))
    cache = _poisoned_cache(target)
    logits = target.logits(target.forward(cache, prompt).hidden)
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def test_features_are_the_raw_outputs_of_the_tapped_layers(family, tiny_model):
    prompt = torch.as_tensor(np.random.default_rng(5).integers(3, 61, 12))
    with torch.no_grad():
        states = tiny_model(family)(prompt[None], output_hidden_states=True).hidden_states
    # In the order that is asked for: the drafter's weights have their columns in it.
    target = Target(tiny_model(family), taps=(1, 0))
    features = target.forward(_poisoned_cache(target), prompt).features
    first, second = features.split(target.hidden_size, dim=1)
    torch.testing.assert_close(second, states[1][0], rtol=1e-4, atol=1e-4)
    if len(states) > 3:
        # The last state of Transformers is normed.
        torch.testing.assert_close(first, states[2][0], rtol=1e-4, atol=1e-4)
    alone = Target(tiny_model(family), taps=(1,))
    assert torch.equal(first, alone.forward(_poisoned_cache(alone), prompt).features)


def _lucky_tree(tree, continuation, generator):
    """The tree with a random root path rewritten to the tokens that the target will choose."""
    tokens = tree.tokens.copy()
    for node in tree.path(int(generator.integers(0, len(tree))))[1:]:
        tokens[node] = continuation[int(tree.depth[node]) - 1]
    return DraftTree(tokens, tree.parent, tree.depth, tree.logp)


def test_greedy_decoding_through_trees_equals_one_token_steps(family, tiny_model, tree_maker):
    target = Target(tiny_model(family, seed=3))
    generator = np.random.default_rng(11)
    prompt = generator.integers(3, 61, 6).tolist()
    cache, want = _prefilled(target, prompt[:-1]), []
    token = prompt[-1]
    for _ in range(60):
        forward = target.forward(cache, torch.tensor([token]))
        target.commit(cache, [0])
        token = int(target.logits(forward.hidden).argmax())
        want.append(token)
    cache, got, accepted = _prefilled(target, prompt[:-1]), [], []
    anchor = prompt[-1]
    while len(got) < 40:
        shape = tree_maker(generator, anchor, 13, float(generator.choice([0.3, 0.9])))
        tree = _lucky_tree(shape, want[len(got) :], generator)
        forward = target.forward(cache, torch.as_tensor(tree.tokens), tree)
        result = accept_greedy(tree, target.logits(forward.hidden).argmax(-1).numpy())
        target.commit(cache, result.rows)
        got += result.tokens
        accepted.append(len(result.tokens))
        anchor = got[-1]
    assert got == want[: len(got)]
    assert max(accepted) > 2

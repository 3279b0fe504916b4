"""Passes of fixed shape, as CUDA graphs replay them, against passes that slice."""

import numpy as np
import pytest
import torch

from specengine.errors import OptionError, RequestError
from specengine.models import Target
from specengine.models.graphs import padded_rows, span_for
from specengine.models.static_rows import StaticRows, pack
from specengine.trees.draft_tree import DraftTree

CAPACITY = 96


def _prefilled(target, prompt, *, poison):
    cache = target.new_cache(CAPACITY)
    cache.keys_values.fill_(poison)
    target.forward(cache, torch.tensor(prompt))
    target.commit(cache, range(len(prompt)))
    return cache


def _static_pass(target, cache, tree, count, span):
    rows = StaticRows(
        count, span, groups=target.layout.groups, dtype=target.dtype, device=target.device
    )
    rows.inputs.copy_(torch.from_numpy(pack(cache.length, tree, count)))
    target.forward(cache, torch.from_numpy(tree.tokens), tree)
    with torch.inference_mode():
        return target.run(cache, rows.tokens, rows)


def _chain(tokens):
    size = len(tokens)
    return DraftTree(
        tokens=np.array(tokens, dtype=np.int64),
        parent=np.arange(-1, size - 1, dtype=np.int32),
        depth=np.arange(size, dtype=np.int32),
        logp=np.zeros(size, dtype=np.float32),
    )


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("span", [64, CAPACITY])
def test_static_pass_equals_the_sliced_one(family, tiny_model, tree_maker, length, span):
    target = Target(tiny_model(family), taps=(1, 0))
    generator = np.random.default_rng(length)
    prompt = generator.integers(3, 61, length).tolist()
    chain = _chain(generator.integers(3, 61, 9).tolist())
    tree = chain if target.layout.delta.layers else tree_maker(generator, 7, 13, 0.4)
    sliced = _prefilled(target, prompt, poison=float("nan"))
    want = target.forward(sliced, torch.from_numpy(tree.tokens), tree)
    masked = _prefilled(target, prompt, poison=0.0)
    got = _static_pass(target, masked, tree, 16, span)
    size = len(tree)
    torch.testing.assert_close(got.hidden[:size], want.hidden, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.features[:size], want.features, rtol=1e-4, atol=1e-4)
    path = tree.path(int(tree.depth.argmax()))
    for cache in (sliced, masked):
        target.commit(cache, path)
    end = length + len(path)
    for one, other in (
        (masked.keys_values[:, :, :end], sliced.keys_values[:, :, :end]),
        (masked.conv, sliced.conv),
        (masked.recurrent, sliced.recurrent),
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_padding_changes_nothing_that_is_read(tiny_model, tree_maker):
    target = Target(tiny_model("gemma3"))
    tree = tree_maker(np.random.default_rng(0), 5, 11, 0.4)
    prompt = [5, 9, 11, 30]
    passes = [
        _static_pass(target, _prefilled(target, prompt, poison=0.0), tree, count, 64)
        for count in (11, 16, 32)
    ]
    for other in passes[1:]:
        torch.testing.assert_close(other.hidden[:11], passes[0].hidden, rtol=1e-5, atol=1e-5)


def test_rows_that_are_used_again_forget_the_masks_of_the_pass_before(tiny_model, tree_maker):
    target = Target(tiny_model("gemma3"))
    generator = np.random.default_rng(1)
    rows = StaticRows(16, 64, groups=target.layout.groups, dtype=target.dtype, device=target.device)
    for prompt in ([5, 9, 11, 30, 8, 41], [7, 3]):
        tree = tree_maker(generator, 5, 11, 0.4)
        cache = _prefilled(target, prompt, poison=0.0)
        fresh = _static_pass(target, _prefilled(target, prompt, poison=0.0), tree, 16, 64)
        rows.inputs.copy_(torch.from_numpy(pack(cache.length, tree, 16)))
        rows.begin()
        with torch.inference_mode():
            again = target.run(cache, rows.tokens, rows)
        assert torch.equal(again.hidden[:11], fresh.hidden[:11])


def test_rows_and_spans_grow_in_steps():
    assert [padded_rows(count) for count in (1, 2, 8, 9, 33)] == [1, 8, 8, 16, 40]
    assert [span_for(n, 2048) for n in (1, 256, 257, 1025)] == [256, 256, 512, 2048]
    assert span_for(700, 768) == 768


def test_graphs_need_a_gpu(tiny_model):
    from specengine.decoding.options import EngineOptions

    with pytest.raises(OptionError, match=r"option 'cuda_graphs': is not available \(weights are"):
        Target(tiny_model("llama"), options=EngineOptions(cuda_graphs=True))


def test_a_chain_longer_than_a_chunk_can_be_committed_in_part(tiny_model):
    target = Target(tiny_model("qwen3_5"))
    tokens = np.random.default_rng(3).integers(3, 61, 70).tolist()
    cache = target.new_cache(CAPACITY)
    target.forward(cache, torch.tensor([7, 8, 9]))
    target.commit(cache, range(3))
    target.forward(cache, torch.tensor(tokens), _chain(tokens))
    target.commit(cache, range(5))
    steps = target.new_cache(CAPACITY)
    target.forward(steps, torch.tensor([7, 8, 9, *tokens[:5]]))
    target.commit(steps, range(8))
    torch.testing.assert_close(cache.recurrent, steps.recurrent, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache.conv, steps.conv, rtol=1e-4, atol=1e-4)


def test_a_prompt_longer_than_the_cache_is_refused(tiny_model):
    target = Target(tiny_model("llama"))
    with pytest.raises(RequestError, match="cache positions"):
        target.forward(target.new_cache(4), torch.arange(3, 9))

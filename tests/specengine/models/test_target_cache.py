import numpy as np
import pytest
import torch

from specengine.errors import OptionError, RequestError
from specengine.models import Target


def _snapshot(cache):
    return cache.length, cache.keys_values.clone(), cache.conv.clone(), cache.recurrent.clone()


def test_forward_alone_changes_nothing_that_is_committed(family, tiny_model, tree_maker):
    target = Target(tiny_model(family))
    cache = target.new_cache(40)
    target.forward(cache, torch.arange(3, 15))
    target.commit(cache, range(12))
    length, keys_values, conv, recurrent = _snapshot(cache)
    tree = tree_maker(np.random.default_rng(0), 5, 9, 0.5)
    first = target.forward(cache, torch.as_tensor(tree.tokens), tree).hidden
    again = target.forward(cache, torch.as_tensor(tree.tokens), tree).hidden
    assert torch.equal(first, again)
    assert cache.length == length
    assert torch.equal(cache.keys_values[:, :, :12], keys_values[:, :, :12])
    assert torch.equal(cache.conv, conv)
    assert torch.equal(cache.recurrent, recurrent)


def test_buffers_never_move_or_grow(family, tiny_model):
    target = Target(tiny_model(family))
    cache = target.new_cache(30)
    buffers = (cache.keys_values, cache.conv, cache.recurrent)
    places = [buffer.data_ptr() for buffer in buffers]
    for _ in range(4):
        target.forward(cache, torch.arange(3, 9))
        target.commit(cache, [0, 1, 2])
    assert [b.data_ptr() for b in (cache.keys_values, cache.conv, cache.recurrent)] == places
    assert cache.length == 12


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 1, 1], [0, 9], [0, 1, 0]])
def test_commit_refuses_rows_that_are_no_path(tiny_model, rows):
    target = Target(tiny_model("qwen3_5"))
    cache = target.new_cache(30)
    target.forward(cache, torch.arange(3, 8))
    before = _snapshot(cache)
    with pytest.raises(ValueError, match="not a path"):
        target.commit(cache, rows)
    for old, new in zip(before[2:], _snapshot(cache)[2:], strict=True):
        assert torch.equal(old, new)
    assert cache.length == 0


def test_commit_twice_is_refused(tiny_model):
    target = Target(tiny_model("llama"))
    cache = target.new_cache(30)
    target.forward(cache, torch.arange(3, 8))
    target.commit(cache, [0])
    with pytest.raises(ValueError, match="not committed yet"):
        target.commit(cache, [0])


class _Broken:
    def after(self, conv, state, path):
        raise ArithmeticError("replay failed")


def test_failed_replay_leaves_every_state_as_it_was(tiny_model):
    target = Target(tiny_model("qwen3_5"))
    cache = target.new_cache(30)
    target.forward(cache, torch.arange(3, 8))
    target.commit(cache, range(5))
    target.forward(cache, torch.arange(8, 12))
    cache.keep(2, _Broken())
    before = _snapshot(cache)
    with pytest.raises(ArithmeticError):
        target.commit(cache, [0, 1])
    assert cache.length == before[0]
    assert torch.equal(cache.conv, before[2])
    assert torch.equal(cache.recurrent, before[3])


def test_reset_gives_the_outputs_of_a_fresh_cache(family, tiny_model):
    target = Target(tiny_model(family))
    cache = target.new_cache(30)
    first = target.forward(cache, torch.arange(3, 15)).hidden
    target.commit(cache, range(12))
    cache.reset()
    assert torch.equal(target.forward(cache, torch.arange(3, 15)).hidden, first)


def test_rows_beyond_the_capacity_are_refused_before_anything_is_written(tiny_model):
    target = Target(tiny_model("llama"))
    cache = target.new_cache(8)
    target.forward(cache, torch.arange(3, 9))
    target.commit(cache, range(6))
    with pytest.raises(RequestError, match=r"prompt: .*9 cache positions.*8"):
        target.forward(cache, torch.arange(3))
    assert cache.length == 6


def test_positions_beyond_the_model_are_refused(tiny_model):
    target = Target(tiny_model("llama"))
    cache = target.new_cache(400)
    with pytest.raises(RequestError, match="position 256 of a model with 256"):
        target.forward(cache, torch.full((257,), 3))


def test_empty_capacity_and_foreign_taps_are_refused(tiny_model):
    target = Target(tiny_model("llama"))
    with pytest.raises(RequestError):
        target.new_cache(0)
    with pytest.raises(OptionError, match="tap 2 names no layer"):
        target.taps = (0, 2)

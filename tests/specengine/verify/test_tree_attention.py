import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specengine.verify.tree_attention import tree_attention, visible_keys


def _brute_force(length, tree, window, first):
    expected = np.zeros((len(tree), length - first + len(tree)), dtype=bool)
    for row in range(len(tree)):
        path = tree.path(row)
        position = length + int(tree.depth[row])
        for slot in range(first, length):
            expected[row, slot - first] = window is None or position - slot < window
        for other in path:
            near = window is None or position - (length + int(tree.depth[other])) < window
            expected[row, length - first + other] = near
    return expected


@pytest.mark.parametrize("window", [None, 1, 4, 9])
@pytest.mark.parametrize("length", [0, 3, 4, 5, 12])
def test_visibility_counts_positions_not_slots(tree_maker, window, length):
    generator = np.random.default_rng(length)
    for chainy in (0.0, 0.6, 1.0):
        tree = tree_maker(generator, 3, 13, chainy)
        depth = torch.as_tensor(tree.depth, dtype=torch.int64)
        ancestors = torch.as_tensor(tree.ancestors())
        first = 0 if window is None else max(0, length - window + 1)
        for start in {0, first}:
            got = visible_keys(length, depth, ancestors, window, start).numpy()
            np.testing.assert_array_equal(got, _brute_force(length, tree, window, start))


def test_slots_before_the_slice_are_invisible_to_every_row(tree_maker):
    tree = tree_maker(np.random.default_rng(1), 3, 13, 0.5)
    depth = torch.as_tensor(tree.depth, dtype=torch.int64)
    seen = visible_keys(12, depth, torch.as_tensor(tree.ancestors()), 5)
    assert not seen[:, : 12 - 5 + 1].any()
    assert seen.any(dim=1).all()


def test_reference_equals_torch_attention_per_head():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(6, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, 11, 8, generator=generator)
    visible = torch.rand(5, 11, generator=generator) < 0.5
    visible[:, 0] = True
    got = tree_attention(query, key, value, visible, scale=0.3)
    for head in range(6):
        want = F.scaled_dot_product_attention(
            query[head], key[head // 3], value[head // 3], attn_mask=visible, scale=0.3
        )
        torch.testing.assert_close(got[head], want)


def test_soft_cap_bounds_the_scores():
    query = torch.full((1, 1, 4), 100.0)
    key = torch.stack([torch.full((4,), 100.0), torch.zeros(4)])[None]
    value = torch.eye(2)[None]
    seen = torch.ones(1, 2, dtype=torch.bool)
    got = tree_attention(query, key, value.repeat(1, 1, 2), seen, scale=1.0, softcap=2.0)
    weight = torch.softmax(torch.tensor([2.0, 0.0]), dim=0)
    torch.testing.assert_close(got[0, 0, :2], weight)

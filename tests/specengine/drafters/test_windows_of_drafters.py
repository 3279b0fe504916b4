"""Sliding windows of every kind: what lies within is read, what lies beyond is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from specengine.drafters.block import BlockDrafter
from specengine.drafters.checkpoint import new_network
from specengine.drafters.loading import drafter_of

LENGTH, WINDOW = 12, 5


@pytest.fixture
def windowed(make_kind, target):
    """`windowed(kind, full)`: a drafter whose layers slide, but for the layers in `full`."""

    def make(name, full=()):
        network = make_kind(name, target)
        layers = range(network.config.num_hidden_layers)
        kinds = ["full_attention" if layer in full else "sliding_attention" for layer in layers]
        config = replace(network.config, layer_types=tuple(kinds), sliding_window=WINDOW)
        own = new_network(config)
        own.load_state_dict(network.state_dict())
        return drafter_of(own.eval().requires_grad_(requires_grad=False), target)

    return make


def _edges(drafter, positions, changed=None):
    """The lattice's scores; the features of one context position may be changed."""
    draw = torch.Generator().manual_seed(1)
    features = torch.randn(LENGTH, 64 * len(drafter.taps), generator=draw)
    if changed is not None:
        features[changed] += 3.0
    state = drafter.new_state(LENGTH)
    drafter.extend(state, features, np.arange(LENGTH) + 20)
    return drafter.draft(state, 7, positions).edge


@pytest.mark.parametrize("full", [(), (0,), (1,)])
def test_cut_context_changes_no_draft_of_a_block(kind, full, windowed, monkeypatch):
    if kind.startswith("eagle3"):
        pytest.skip("reads its context in one way")
    drafter = windowed(kind, full)
    cut = _edges(drafter, 4)
    monkeypatch.setattr(BlockDrafter, "_first_visible", lambda self, length: 0)
    np.testing.assert_allclose(cut, _edges(drafter, 4), atol=1e-5)


@pytest.mark.parametrize("name", ["eagle3", "eagle3-own"])
def test_rows_of_eagle3_see_as_far_back_as_their_window(name, windowed):
    drafter = windowed(name)
    for positions in (1, 2, 3):
        base = _edges(drafter, positions)[-1]
        # The first row is that of the newest position; each further one stands one behind it. All
        # rows of a draft read what the earlier ones saw.
        reached = LENGTH - 1 - (WINDOW - 1)
        for place in range(reached - 3, reached + 2):
            moved = np.abs(_edges(drafter, positions, place)[-1] - base).max() > 1e-6
            assert moved == (place >= reached)

"""The drafter against a plain reference, its context cache, windows, causality and guards."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.drafters.candidates import top_candidates
from specengine.drafters.dflash2 import DFlash2Drafter
from specengine.errors import NumericError, RequestError

_spec = importlib.util.spec_from_file_location(
    "reference_dflash", Path(__file__).with_name("reference_dflash.py")
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def _features(config, rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    width = len(config.target_layer_ids) * config.hidden_size
    return torch.randn(rows, width, generator=generator)


def _draft(network, target, features, positions=4, anchor=7):
    drafter = DFlash2Drafter(network, target)
    state = drafter.new_state(len(features) + 1)
    drafter.extend(state, features, np.zeros(len(features), dtype=np.int64))
    return drafter.draft(state, anchor, positions).check()


def _embedded(target, config, positions, anchor=7):
    return target.embed_tokens(torch.tensor([anchor] + [config.mask_token_id] * positions))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_causal": True},
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5},
        {"final_logit_softcapping": 3.0, "output_multiplier": 0.5, "input_embedding_scale": 2.0},
    ],
)
def test_lattice_equals_brute_force(make_config, make_network, target, changes):
    config = make_config(**changes)
    network = make_network(config)
    features = _features(config, 9)
    lattice = _draft(network, target, features)
    embedded = _embedded(target, config, 4) * config.input_embedding_scale
    hidden = reference.hidden_rows(network, embedded, features, filters=True)[1:]
    unary = target.head(hidden) * config.output_multiplier
    if config.final_logit_softcapping is not None:
        cap = config.final_logit_softcapping
        unary = cap * torch.tanh(unary / cap)
    ids, edge = reference.lattice_scores(network, unary, hidden, 7)
    assert lattice.ids.tolist() == ids
    np.testing.assert_allclose(lattice.edge, edge.numpy(), atol=2e-4)
    assert (lattice.edge[0] == lattice.edge[0, 0]).all()


def test_identity_filters_and_zero_successor_are_dflash_v1(make_config, make_network, target):
    config = make_config()
    network = make_network(config, plain=True)
    features = _features(config, 6)
    lattice = _draft(network, target, features)
    hidden = reference.hidden_rows(network, _embedded(target, config, 4), features, filters=False)[
        1:
    ]
    unary = target.head(hidden)
    top = unary.topk(config.selector_top_k)
    assert lattice.ids.tolist() == top.indices.tolist()
    expected = top.values.log_softmax(-1)[:, None].expand(-1, config.selector_top_k, -1)
    np.testing.assert_allclose(lattice.edge, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_context_grown_in_pieces_equals_context_at_once(make_config, make_network, target, seed):
    config = make_config(layer_types=["sliding_attention", "full_attention"], sliding_window=6)
    network = make_network(config)
    lengths = [3, *np.random.default_rng(seed).integers(0, 6, 8).tolist()]
    features = _features(config, sum(lengths))
    drafter = DFlash2Drafter(network, target)
    state = drafter.new_state(64)
    for keys, values in state.layers:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    done = 0
    for length in lengths:
        drafter.extend(state, features[done : done + length], np.zeros(length, dtype=np.int64))
        done += length
        drafter.draft(state, 5, 3)
    assert state.length == len(features)
    grown = drafter.draft(state, 9, 3)
    whole = _draft(network, target, features, positions=3, anchor=9)
    assert grown.ids.tolist() == whole.ids.tolist()
    np.testing.assert_allclose(grown.edge, whole.edge, atol=1e-5)


def test_window_ends_where_it_should(make_config, make_network, target):
    window, length = 5, 12
    config = make_config(
        num_hidden_layers=1, layer_types=["sliding_attention"], sliding_window=window
    )
    network = make_network(config, plain=True)
    features = _features(config, length)
    base = _draft(network, target, features).edge
    for back, sees in ((window + 1, False), (window, False), (window - 1, True)):
        # `back` counts from the anchor; drafted rows stand further on and see less.
        changed = features.clone()
        changed[length - back] += 3.0
        # Slot 0 of the lattice is the row after the anchor, one position further.
        seen_by_first = back + 1 < window
        moved = np.abs(_draft(network, target, changed).edge - base).max(axis=(1, 2)) > 1e-6
        assert moved[0] == seen_by_first
        rows = _rows(network, target, features, config) - _rows(network, target, changed, config)
        assert bool((rows[0].abs() > 1e-6).any()) == sees


def _rows(network, target, features, config):
    positions = torch.arange(len(features))
    context = network.context_keys_values(network.context(features)[None], positions)
    embedded = _embedded(target, config, 4)[None, None]
    return network(embedded, torch.tensor([[len(features)]]), context, positions)[0, 0]


def test_causal_rows_do_not_depend_on_later_rows(make_config, make_network, target):
    for causal in (True, False):
        config = make_config(is_causal=causal)
        network = make_network(config)
        features = _features(config, 6)
        short = _draft(network, target, features, positions=3)
        long = _draft(network, target, features, positions=9)
        assert long.positions == 9
        assert np.allclose(short.edge, long.edge[:3], atol=1e-5) == causal


def test_causality_of_checkpoints_without_the_field(make_config):
    kinds = ["sliding_attention", "full_attention"]
    config = make_config(is_causal=None, layer_types=kinds, sliding_window=8)
    assert config.is_causal == (True, False)
    config = make_config(is_causal=False, layer_types=kinds, sliding_window=8)
    assert config.is_causal == (False, False)


def test_non_finite_logits_are_refused(make_config, make_network, target):
    config = make_config()
    network = make_network(config)
    features = _features(config, 4)
    features[2, 0] = float("nan")
    with pytest.raises(NumericError, match="non-finite"):
        _draft(network, target, features)


def test_selector_scores_that_overflow_are_refused(make_config, make_network, target):
    config = make_config()
    network = make_network(config)
    for name in ("predecessor_codebook", "successor_codebook"):
        getattr(network.candidate_selector, name).mul_(1e25)
    with pytest.raises(NumericError, match="non-finite scores"):
        _draft(network, target, _features(config, 4))


def test_context_beyond_its_capacity_is_refused(make_config, make_network, target):
    config = make_config()
    drafter = DFlash2Drafter(make_network(config), target)
    state = drafter.new_state(3)
    with pytest.raises(RequestError, match="needs 4 positions of 3"):
        drafter.extend(state, _features(config, 4), np.zeros(4, dtype=np.int64))


def test_parameter_bytes_leave_the_codebooks_out(make_config, make_network, target):
    config = make_config()
    network = make_network(config)
    books = 2 * config.vocab_size * config.selector_rank
    total = sum(parameter.numel() for parameter in network.parameters())
    assert DFlash2Drafter(network, target).parameter_bytes() == 4 * (total - books)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(5, 300), count=st.integers(1, 5), levels=st.integers(1, 40),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_top_candidates_equal_a_sort(size, count, levels, seed):
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randint(0, levels, (3, size), generator=generator).float()
    values, ids = top_candidates(unary, count)
    for row in range(3):
        order = sorted(range(size), key=lambda token: (-float(unary[row, token]), token))
        assert ids[row].tolist() == order[:count]
        assert values[row].tolist() == unary[row, ids[row]].tolist()


def test_equal_candidates_far_apart_come_by_lowest_id():
    unary = torch.zeros(1, 300)
    unary[0, [10, 131, 290]] = 3.0
    unary[0, 130] = 5.0
    assert top_candidates(unary, 4)[1].tolist() == [[130, 10, 131, 290]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_top_candidates_refuse_non_finite_rows(bad):
    unary = torch.zeros(2, 100)
    unary[1, 70] = bad
    with pytest.raises(NumericError):
        top_candidates(unary, 3)


def test_padded_columns_of_minus_infinity_are_no_candidates():
    unary = torch.zeros(1, 80)
    unary[0, 64:] = float("-inf")
    assert top_candidates(unary, 5)[1].max() < 64

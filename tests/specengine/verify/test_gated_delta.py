import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specengine.verify.gated_delta import (
    CHUNK_ROWS,
    DeltaInputs,
    PathRows,
    WholeChain,
    advance,
    chain_outputs,
    conv_windows,
    levels,
    path_outputs,
)

HEADS, KEY, VALUE = 3, 8, 6


def _inputs(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return DeltaInputs(
        query=torch.randn(count, HEADS, KEY, generator=generator),
        key=F.normalize(torch.randn(count, HEADS, KEY, generator=generator), dim=-1),
        value=torch.randn(count, HEADS, VALUE, generator=generator),
        decay=-3 * torch.rand(count, HEADS, generator=generator),
        beta=torch.rand(count, HEADS, generator=generator),
    )


def _state(seed=9):
    return torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(seed))


def _dense_rule(state, rows, path):
    """Equation (2) of the paper with the identity matrix written out."""
    outputs = []
    for row in path:
        key = rows.key[row][:, :, None]
        erase = torch.eye(KEY) - rows.beta[row][:, None, None] * key @ key.transpose(1, 2)
        write = rows.beta[row][:, None, None] * key @ rows.value[row][:, None, :]
        state = rows.decay[row].exp()[:, None, None] * erase @ state + write
        outputs.append((state.transpose(1, 2) @ rows.query[row][:, :, None])[:, :, 0])
    return torch.stack(outputs), state


@pytest.mark.parametrize("chainy", [0.0, 0.5, 1.0])
def test_each_row_follows_its_own_root_path(tree_maker, chainy):
    tree = tree_maker(np.random.default_rng(3), 3, 17, chainy)
    rows, state = _inputs(17), _state()
    got = path_outputs(state, rows, levels(tree.parent.tolist(), state.device))
    for row in range(17):
        want, _ = _dense_rule(state, rows, tree.path(row))
        torch.testing.assert_close(got[row], want[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 200])
def test_matrix_form_equals_the_row_by_row_rule(count):
    rows, state = _inputs(count, seed=count), _state()
    output, final = chain_outputs(state, rows)
    want, last = _dense_rule(state, rows, range(count))
    torch.testing.assert_close(output, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, last, rtol=1e-4, atol=1e-4)


def test_matrix_form_survives_decay_that_underflows():
    rows = _inputs(100)
    rows = DeltaInputs(rows.query, rows.key, rows.value, 60 * rows.decay, rows.beta)
    output, final = chain_outputs(_state(), rows)
    assert torch.isfinite(output).all()
    assert torch.isfinite(final).all()


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_windows_cover_ancestors_then_committed_inputs(tree_maker, taps):
    tree = tree_maker(np.random.default_rng(5), 3, 14, 0.6)
    conv, inputs = torch.randn(taps - 1, 5), torch.randn(14, 5)
    got = conv_windows(conv, inputs, tree.parent.tolist())
    for row in range(14):
        path = torch.cat([conv, inputs[tree.path(row)]])
        torch.testing.assert_close(got[row], path[-taps:].T)


def test_chain_windows_equal_those_of_a_chain_shaped_tree():
    conv, inputs = torch.randn(3, 5), torch.randn(9, 5)
    chain = conv_windows(conv, inputs, None)
    torch.testing.assert_close(chain, conv_windows(conv, inputs, range(-1, 8)))


def test_replay_of_a_path_is_bitwise_the_row_by_row_update(tree_maker):
    tree = tree_maker(np.random.default_rng(7), 3, 12, 0.5)
    rows, state, conv = _inputs(12), _state(), torch.randn(3, 5)
    inputs = torch.randn(12, 5)
    path = tree.path(11)
    got_conv, got_state = PathRows(inputs, rows).after(conv, state, path)
    for row in path:
        state = advance(state, rows.key[row], rows.value[row], rows.decay[row], rows.beta[row])
        conv = torch.cat([conv, inputs[row : row + 1]])[1:]
    assert torch.equal(got_state, state)
    assert torch.equal(got_conv, conv)


def test_a_whole_chain_refuses_to_be_cut():
    chain = WholeChain(4, torch.zeros(3, 5), _state())
    with pytest.raises(ValueError, match="whole or not at all"):
        chain.after(torch.zeros(3, 5), _state(), [0, 1])

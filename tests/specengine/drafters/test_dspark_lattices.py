"""DSpark and DFlash lattices against a plain reference, and DSpark's cut."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from specengine.drafters.dspark import DSparkDrafter
from specengine.drafters.loading import drafter_of
from specengine.errors import NumericError, OptionError
from specengine.models.linear import PrepackedLinear, replace_linear
from specengine.trees import build

_spec = importlib.util.spec_from_file_location(
    "reference_dflash", Path(__file__).with_name("reference_dflash.py")
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
ROWS, ANCHOR, POSITIONS = 6, 7, 4


def _setting(network, target):
    """A drafter's state, and hidden rows and unary scores by the reference."""
    features = torch.randn(ROWS, 128, generator=torch.Generator().manual_seed(1))
    shifted = network.config.slots == "shifted"
    masked = torch.tensor([ANCHOR] + [3] * (POSITIONS - shifted))
    vocabulary = drafter_of(network, target).vocabulary
    hidden = reference.hidden_rows(network, vocabulary.embed(masked), features, filters=False)
    hidden = hidden if shifted else hidden[1:]
    return features, hidden, vocabulary.head(hidden)


def _bias(network, token, row, state):
    """Bias over draft ids after `token`, and the next state."""
    w = {name.removeprefix("markov_head."): t for name, t in network.state_dict().items()}
    first = w["markov_w1.weight"][token]
    kind = network.config.markov_head_type
    if kind == "gated":
        joint = w["gate_proj.weight"] @ torch.cat((row, first)) + w["gate_proj.bias"]
        first = torch.sigmoid(joint) * first
    if kind == "rnn":
        joint = w["joint_proj.weight"] @ torch.cat((state, first, row)) + w["joint_proj.bias"]
        gate, candidate, out = joint.split(len(state))
        gate = torch.sigmoid(gate)
        state, first = gate * state + (1 - gate) * torch.tanh(candidate), torch.tanh(out)
    return w["markov_w2.weight"] @ first, state


def _draft(drafter, features):
    state = drafter.new_state(ROWS)
    drafter.extend(state, features, np.zeros(ROWS, dtype=np.int64))
    return state, drafter.draft(state, ANCHOR, POSITIONS).check()


@pytest.mark.parametrize("name", ["dflash", "dflash-shifted"])
def test_marginals_are_the_same_for_all_parents(name, make_kind, target):
    network = make_kind(name, target)
    features, _, unary = _setting(network, target)
    _, lattice = _draft(drafter_of(network, target), features)
    top = unary.topk(16)
    assert lattice.ids.tolist() == top.indices.tolist()
    wanted = top.values.log_softmax(-1)[:, None].expand(-1, 16, -1)
    np.testing.assert_allclose(lattice.edge, wanted.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", ["dspark", "dspark-gated", "dspark-rnn", "dspark-own"])
def test_the_chain_is_the_sequential_argmax(name, make_kind, target):
    network = make_kind(name, target)
    features, hidden, unary = _setting(network, target)
    drafter = drafter_of(network, target)
    _, lattice = _draft(drafter, features)
    token, state, path = ANCHOR, torch.zeros(8), [ANCHOR]
    for row, scores in zip(hidden, unary, strict=True):
        bias, state = _bias(network, token, row, state)
        token = int(drafter.vocabulary.target_ids((scores + bias).argmax()))
        path.append(token)
    assert build("chain", lattice, ANCHOR, 9).tokens.tolist() == path
    assert lattice.candidates == (1 if name == "dspark-rnn" else 16)


@pytest.mark.parametrize("name", ["dspark", "dspark-gated", "dspark-rnn", "dspark-own"])
def test_heads_are_their_formulas(name, make_kind, target):
    network = make_kind(name, target)
    head = network.markov_head
    draw = torch.Generator().manual_seed(3)
    for token in (0, ANCHOR, 60):
        row, state = torch.randn(64, generator=draw), torch.randn(8, generator=draw)
        latent, following = head.latent(torch.tensor(token), row, state)
        bias, wanted = _bias(network, token, row, state)
        torch.testing.assert_close(head.markov_w2(latent), bias, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(following, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dspark", "dspark-gated", "dspark-rnn", "dspark-own"])
def test_prepacked_layers_draft_the_same(name, make_kind, target):
    network = make_kind(name, target)
    features, _, _ = _setting(network, target)
    _, plain = _draft(drafter_of(network, target), features)
    replace_linear(network, PrepackedLinear)
    _, packed = _draft(drafter_of(network, target), features)
    assert packed.ids.tolist() == plain.ids.tolist()
    np.testing.assert_allclose(packed.edge, plain.edge, atol=1e-4)


@pytest.mark.parametrize("name", ["dspark", "dspark-gated", "dspark-own"])
@pytest.mark.parametrize("candidates", ["biased", "unary"])
def test_edges_hold_the_bias_of_every_parent(name, candidates, make_kind, target):
    network = make_kind(name, target)
    features, hidden, unary = _setting(network, target)
    drafter = DSparkDrafter(network, target, candidates)
    _, lattice = _draft(drafter, features)
    targets = drafter.vocabulary.target_ids(torch.arange(drafter.vocabulary.size)).tolist()
    previous, token = [ANCHOR] * 16, ANCHOR
    for t in range(POSITIONS):
        greedy = unary[t] + _bias(network, token, hidden[t], torch.zeros(8))[0]
        chosen = (greedy if candidates == "biased" else unary[t]).topk(16).indices.tolist()
        assert lattice.ids[t].tolist() == [targets[i] for i in chosen]
        for a, before in enumerate(previous):
            bias, _ = _bias(network, before, hidden[t], torch.zeros(8))
            wanted = (unary[t] + bias)[chosen].log_softmax(-1).numpy()
            np.testing.assert_allclose(lattice.edge[t, a], wanted, atol=1e-4)
        previous, token = lattice.ids[t].tolist(), targets[int(greedy.argmax())]


@pytest.mark.parametrize("name", ["dspark", "dspark-rnn"])
def test_drafts_end_where_confidence_does(name, make_kind, target):
    network = make_kind(name, target)
    features, hidden, _ = _setting(network, target)
    drafter = drafter_of(network, target)
    state, lattice = _draft(drafter, features)
    before = build("chain", lattice, ANCHOR, POSITIONS).tokens
    w = network.state_dict()
    estimates = [
        float(
            torch.sigmoid(
                w["confidence_head.proj.weight"][0]
                @ torch.cat((row, w["markov_head.markov_w1.weight"][int(token)]))
                + w["confidence_head.proj.bias"][0]
            )
        )
        for row, token in zip(hidden, before, strict=True)
    ]
    for threshold in (1e-6, *(value + 1e-4 for value in estimates), 1 - 1e-6):
        cut = drafter.draft_confident(state, ANCHOR, POSITIONS, threshold)
        low = [i for i, value in enumerate(estimates) if value < threshold]
        assert cut.positions == (low[0] if low else POSITIONS)
        assert cut.ids.tolist() == lattice.ids[: cut.positions].tolist()


def test_confidence_must_be_there_and_finite(make_kind, target):
    network = make_kind("dspark", target)
    drafter = drafter_of(network, target)
    state, _ = _draft(drafter, _setting(network, target)[0])
    with torch.no_grad():
        network.confidence_head.proj.bias.fill_(float("nan"))
    with pytest.raises(NumericError, match="not finite"):
        drafter.draft_confident(state, ANCHOR, POSITIONS, 0.5)
    network.confidence_head = None
    with pytest.raises(OptionError, match="no confidence head"):
        drafter.draft_confident(state, ANCHOR, POSITIONS, 0.5)

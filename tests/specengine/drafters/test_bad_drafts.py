"""Lattices that no drafter may hand out, and budgets that do not fit one."""

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.drafters.checkpoint import write_network
from specengine.drafters.loading import drafter_of
from specengine.errors import CheckpointError, NumericError, OptionError
from specengine.lattice import Lattice
from specengine.models import Target


def _lattice(positions=2, candidates=3):
    ids = np.arange(positions * candidates).reshape(positions, candidates)
    edge = np.full(
        (positions, candidates, candidates), -np.log(max(candidates, 1)), dtype=np.float32
    )
    return Lattice(ids, edge)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_lattices_are_refused(shape):
    with pytest.raises(NumericError, match="lattice: is empty"):
        _lattice(*shape).check()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_scores_are_refused(bad):
    lattice = _lattice()
    lattice.edge[1, 2, 0] = bad
    with pytest.raises(NumericError, match="non-finite"):
        lattice.check()


def test_duplicate_candidates_are_refused():
    lattice = _lattice()
    lattice.ids[1] = [7, 8, 7]
    with pytest.raises(NumericError, match="names a candidate twice"):
        lattice.check()


@pytest.fixture
def llama(tiny_model):
    target = Target(tiny_model("llama"), taps=(0,))
    target.eos_token_ids = frozenset()
    return target


def _counters(target, drafter, **options):
    engine = Engine(target, drafter, EngineOptions(**options))
    session = engine.start([5, 6, 7], 6)
    while session.finish_reason is None:
        session.step()
    return engine.counters


def test_budgets_that_do_not_fit(kind, make_kind, llama):
    drafter = drafter_of(make_kind(kind, llama), llama)
    with pytest.raises(OptionError, match="leaves no room"):
        Engine(llama, drafter, EngineOptions(nodes=1))
    # One position has no more than its candidates: the tree is smaller than its budget.
    counters = _counters(llama, drafter, tree="best_first", positions=1, nodes=64)
    most = drafter.draft(_state(drafter, llama), 7, 1).candidates
    assert counters.drafted_tokens <= most * counters.steps
    # A chain ends with the lattice, and drafts nothing that could not be emitted.
    counters = _counters(llama, drafter, positions=2, nodes=64)
    assert counters.drafted_tokens <= 2 * counters.steps


def test_a_drafter_that_is_never_right_is_reported_within_fifty_steps(
    kind, make_kind, llama, monkeypatch, caplog
):
    plain = Engine(llama, None)
    session, output = plain.start([5, 6, 7], 53), []
    while session.finish_reason is None:
        output += session.step()
    drafter = drafter_of(make_kind(kind, llama), llama)
    tokens = drafter.vocabulary.target_ids(torch.arange(drafter.vocabulary.size))
    said = torch.isin(tokens, torch.tensor(output))
    assert not said.all()
    head = drafter.vocabulary.head
    monkeypatch.setattr(drafter.vocabulary, "head", lambda rows: head(rows) - 1e4 * said)
    engine = Engine(llama, drafter)
    session, drafted = engine.start([5, 6, 7], 53), []
    while session.finish_reason is None:
        drafted += session.step()
        # The last step has no room for a drafted token.
        assert engine.counters.events["never_accepted"] == int(engine.counters.steps >= 50)
    assert drafted == output
    assert engine.counters.steps == 52
    assert "none of its tokens was accepted in 50 steps" in caplog.text


def test_a_drafter_that_overflows_in_half_precision_ends_the_request(
    kind, make_kind, tiny_model, tmp_path
):
    target = Target(tiny_model("llama").half(), taps=(0,), eos_token_ids=frozenset())
    network = make_kind(kind, target)
    with torch.no_grad():
        for layer in network.layers:
            layer.mlp.down_proj.weight.mul_(3e4)
    write_network(network, network.config, tmp_path / "d", shard_bytes=2**24)
    engine = Engine(target, load_drafter("auto", tmp_path / "d", target))
    plain = Engine(target, None).start([5, 6, 7], 6)
    session = engine.start([5, 6, 7], 6)
    # The first token is the prefill's, which drafts nothing.
    assert session.step() == plain.step()
    with pytest.raises(NumericError, match=r"drafter.*bfloat16 or float32"):
        session.step()


def test_weights_that_are_not_finite_are_named_at_the_load(kind, make_kind, llama, tmp_path):
    network = make_kind(kind, llama)
    with torch.no_grad():
        network.layers[0].mlp.down_proj.weight[1, 2] = float("nan")
    write_network(network, network.config, tmp_path / "d", shard_bytes=2**24)
    with pytest.raises(CheckpointError, match=r"down_proj.weight.*non-finite"):
        load_drafter("auto", tmp_path / "d", llama)


def _state(drafter, target):
    features = target.forward(target.new_cache(8), torch.tensor([5, 6])).features
    state = drafter.new_state(8)
    drafter.extend(state, features, np.array([5, 6]))
    return state

"""Losses against autograd, batches against their definition, learning, and exact resume."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from specengine.drafters.checkpoint import read_network
from specengine.errors import CheckpointError, NumericError, RequestError
from specengine.train.batches import BatchPlan, BatchSource, block_batch
from specengine.train.commands import DrafterShape, drafter_config, new_network
from specengine.train.loop import Schedule, train
from specengine.train.loss import _FrozenHeadLoss, training_loss
from specengine.train.shards import pack, read_shard, write_shard

SHAPE = DrafterShape(layers=1, taps=2, selector_rank=8, selector_top_k=4, block_size=4)
PLAN = BatchPlan(sequences=4, rows=32, blocks=(4, 8), decay=0.5, seed=7)


def _network(teacher, seed=0):
    return new_network(drafter_config(teacher, SHAPE), seed, teacher.device)


def test_new_drafters_fit_their_teacher(teacher):
    config = drafter_config(teacher, dataclasses.replace(SHAPE, taps=3))
    assert config.target_layer_ids == (1, 2, 3)
    assert drafter_config(teacher, dataclasses.replace(SHAPE, taps=1)).target_layer_ids == (3,)
    assert (config.hidden_size, config.vocab_size, config.num_target_layers) == (64, 61, 6)
    network = _network(teacher)
    assert not network.candidate_selector.successor_codebook.any()
    assert not network.layers[0].mlp_conv.kernel_projection.weight.any()


def test_features_are_raw_layer_outputs(teacher):
    tokens = torch.randint(5, 61, (2, 9))
    features = teacher.features(tokens, (1, 4))
    states = teacher.model(tokens, output_hidden_states=True).hidden_states
    assert torch.equal(features, torch.cat((states[2], states[5]), dim=-1))


def test_frozen_head_loss_equals_autograd():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(20, 8, generator=generator, requires_grad=True)
    head = torch.nn.Linear(8, 30).requires_grad_(requires_grad=False)
    labels = torch.randint(0, 30, (20,), generator=generator)
    weights = torch.rand(20, generator=generator)
    loss, candidates = _FrozenHeadLoss.apply(hidden, labels, weights, head, 3)
    (gradient,) = torch.autograd.grad(3 * loss, hidden)
    logits = head(hidden)
    plain = (functional.cross_entropy(logits, labels, reduction="none") * weights).sum()
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * plain, hidden)[0])
    assert torch.equal(candidates, logits.topk(3).indices)


def test_blocks_hold_the_tokens_after_their_anchor(shard):
    batch = block_batch(shard, np.array([0, 4]), 8, 12, 0.5, np.random.default_rng(0))
    for row, index in enumerate((0, 4)):
        sequence = shard.sequence(index).tolist()
        starts = batch.starts[row].tolist()
        used = [s for s, w in zip(starts, batch.weights[row], strict=True) if w.any()]
        assert len(set(used)) == len(used) == min(12, len(sequence) - 4 - 1)
        for anchor, start in enumerate(starts):
            for k in range(1, 8):
                weight = float(batch.weights[row, anchor, k - 1])
                if weight == 0.0:
                    continue
                assert start + k < len(sequence)
                assert weight == pytest.approx(np.exp(-(k - 1) / 4))
                assert batch.labels[row, anchor, k - 1] == sequence[start + k]
                assert batch.previous[row, anchor, k - 1] == sequence[start + k - 1]
    # Weights of a block form a prefix: no label counts behind one that does not.
    inside = batch.weights > 0
    assert not (inside[..., 1:] & ~inside[..., :-1]).any()


def test_batches_depend_on_seed_and_step_only(shard):
    one, other = BatchSource(shard, PLAN), BatchSource(shard, PLAN)
    for step in (5, 0, 3):
        assert torch.equal(one.batch(step).tokens, other.batch(step).tokens)
        assert torch.equal(one.batch(step).starts, other.batch(step).starts)
    assert one.steps_per_epoch == 2
    assert one.batch(0).labels.shape[-1] == 3
    assert one.batch(1).labels.shape[-1] == 7
    seen = {tuple(row.tolist())[:6] for step in (0, 1) for row in one.batch(step).tokens}
    assert len(seen) == len(shard)


def test_answers_too_short_to_learn_from_are_refused():
    with pytest.raises(RequestError, match="no answer of two tokens"):
        BatchSource(pack([([1, 2], [3])]), PLAN)


def test_context_after_the_anchor_is_unseen(teacher, shard):
    """Changing tokens behind every label leaves the loss of a block alone."""
    network = _network(teacher)
    batch = block_batch(shard, np.array([4]), 4, 1, 0.5, np.random.default_rng(2))
    end = int(batch.starts[0, 0])
    changed = batch.tokens.clone()
    changed[0, end + 1 :] = 5
    loss = training_loss(network, teacher, batch, 1.0).loss
    other = training_loss(network, teacher, dataclasses.replace(batch, tokens=changed), 1.0).loss
    assert loss.item() == pytest.approx(other.item(), abs=1e-5)


def test_training_lowers_the_loss_and_uses_the_selector(teacher, shard, tmp_path):
    network = _network(teacher)
    source, lines = BatchSource(shard, PLAN), []
    with torch.no_grad():
        before = training_loss(network, teacher, source.batch(0), 1.0)
    schedule = Schedule(steps=80, rate=5e-3, warmup=5)
    assert train(network, teacher, source, schedule, tmp_path / "c.pt", lines.append) == 80
    with torch.no_grad():
        after = training_loss(network, teacher, source.batch(0), 1.0)
    assert after.unary < 0.7 * before.unary
    assert after.chosen > before.chosen + 0.2
    assert network.candidate_selector.successor_codebook.any()
    assert lines[-1].startswith("step 80 ")


def test_a_resumed_run_equals_an_uninterrupted_one(teacher, shard, tmp_path):
    whole, parts = _network(teacher), _network(teacher)
    schedule = Schedule(steps=9, warmup=2)
    train(whole, teacher, BatchSource(shard, PLAN), schedule, tmp_path / "a.pt", str)

    class Interrupted(BatchSource):
        def batch(self, step):
            if step == 5:
                raise KeyboardInterrupt
            return super().batch(step)

    saving = dataclasses.replace(schedule, save_every=2)
    with pytest.raises(KeyboardInterrupt):
        train(parts, teacher, Interrupted(shard, PLAN), saving, tmp_path / "b.pt", str)
    resumed = _network(teacher, seed=99)
    train(resumed, teacher, BatchSource(shard, PLAN), saving, tmp_path / "b.pt", str)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_checkpoint_of_another_network_is_refused(teacher, shard, tmp_path):
    schedule = Schedule(steps=1)
    source = BatchSource(shard, PLAN)
    train(_network(teacher), teacher, source, schedule, tmp_path / "c.pt", str)
    other = drafter_config(teacher, dataclasses.replace(SHAPE, selector_rank=4))
    with pytest.raises(CheckpointError, match="another network"):
        train(
            new_network(other, 0, teacher.device), teacher, source, schedule, tmp_path / "c.pt",
            str,
        )  # fmt: skip


def test_training_that_diverges_is_stopped(teacher, shard, tmp_path):
    network = _network(teacher)
    with torch.no_grad():
        network.fc.weight[0, 0] = float("nan")
    with pytest.raises(NumericError, match="not finite at step 1"):
        train(network, teacher, BatchSource(shard, PLAN), Schedule(steps=1), tmp_path / "c", str)


def test_the_rate_warms_up_and_falls():
    schedule = Schedule(steps=100, rate=1.0, warmup=10, floor=0.1)
    assert schedule.rate_at(0, 0.0) == pytest.approx(0.1)
    assert schedule.rate_at(50, 0.5) == pytest.approx(0.55)
    assert schedule.rate_at(100, 1.0) == pytest.approx(0.1)


def test_shards_survive_the_disk(shard, tmp_path):
    write_shard(shard, tmp_path / "s.npz")
    back = read_shard(tmp_path / "s.npz")
    assert back.sha256() == shard.sha256()
    assert back.answer_tokens == sum((9, 14, 20, 26, 30, 12, 17, 23))
    (tmp_path / "s.npz").write_bytes(b"no")
    with pytest.raises(RequestError, match="not a token shard"):
        read_shard(tmp_path / "s.npz")


def test_reading_back_what_was_written_needs_no_teacher(teacher, tmp_path):
    from specengine.drafters.checkpoint import write_network

    network = _network(teacher)
    write_network(network, network.config, tmp_path, shard_bytes=2**24)
    assert read_network(tmp_path, torch.float32, "cpu").config == network.config

"""Batches against their definition, learning, and exact resume, for every kind of drafter."""

import dataclasses

import numpy as np
import pytest
import torch

from specengine.drafters.checkpoint import read_network, write_network
from specengine.errors import CheckpointError, NumericError, OptionError, RequestError
from specengine.train.batches import BatchPlan, BatchSource, block_batch
from specengine.train.block_losses import block_loss
from specengine.train.loop import Schedule, step_loss, train
from specengine.train.shapes import DrafterShape, drafter_config, fresh_network, unused_token
from specengine.train.shards import merged, pack, read_shard, write_shard

SHAPE = DrafterShape(layers=1, taps=2, rank=8, selector_top_k=4, block_size=4, unrolled=3)
PLAN = BatchPlan(sequences=4, rows=32, blocks=(4, 8), decay=0.5, seed=7)
KINDS = ("dflash", "dflash2", "dspark", "eagle3")


@pytest.fixture
def make_network(teacher, shard):
    def make(kind="dflash2", seed=0, **changes):
        shape = dataclasses.replace(SHAPE, kind=kind, draft_vocabulary=40, **changes)
        return fresh_network(drafter_config(teacher, shape), teacher, shard, seed)

    return make


def test_new_drafters_fit_their_teacher(teacher, make_network):
    config = drafter_config(teacher, dataclasses.replace(SHAPE, taps=3))
    assert config.target_layer_ids == (1, 2, 3)
    assert drafter_config(teacher, dataclasses.replace(SHAPE, taps=1)).target_layer_ids == (3,)
    assert drafter_config(teacher, dataclasses.replace(SHAPE, taps=(0, 4))).target_layer_ids == (
        0, 4,
    )  # fmt: skip
    assert (config.hidden_size, config.vocab_size, config.num_target_layers) == (64, 61, 6)
    network = make_network("dflash2")
    assert not network.candidate_selector.successor_codebook.any()
    assert not network.layers[0].mlp_conv.kernel_projection.weight.any()
    assert not make_network("dspark").markov_head.markov_w2.weight.any()
    assert make_network("dspark").config.trained_positions == 3
    assert make_network("dflash").config.trained_positions == 3


def test_shapes_may_differ_from_the_target(make_network):
    network = make_network("dflash", heads=2, kv_heads=1, intermediate=20)
    assert network.layers[0].self_attn.q_proj.weight.shape == (32, 64)
    assert network.layers[0].self_attn.k_proj.weight.shape == (16, 64)
    assert network.layers[0].mlp.up_proj.weight.shape == (20, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "medusa"}, "unknown drafter kind"),
        ({"taps": (1, 5)}, "must lie below the last target layer"),
        ({"heads": 3}, "must divide"),
        ({"kind": "eagle3", "layers": 2}, "must be 1 for EAGLE-3"),
        ({"mask_token_id": 61}, "outside 61 rows"),
    ],
)
def test_shapes_that_no_drafter_has_are_refused(teacher, changes, message):
    with pytest.raises((OptionError, CheckpointError), match=message):
        drafter_config(teacher, dataclasses.replace(SHAPE, **changes))


def test_the_draft_vocabulary_is_what_answers_hold_most(teacher, shard, make_network):
    network = make_network("eagle3")
    own = (network.d2t + torch.arange(40)).tolist()
    answers = [t for i in range(len(shard)) for t in shard.sequence(i)[4:].tolist()]
    counts = sorted((-answers.count(t), t) for t in range(61))
    assert own == sorted(token for _, token in counts[:40])
    head = teacher.model.get_output_embeddings().weight
    assert torch.equal(network.lm_head.weight, head[own])
    assert shard.share_of(np.array(own)) == pytest.approx(
        sum(token in own for token in answers) / len(answers)
    )


def test_masks_are_rows_that_no_text_holds(teacher, shard):
    mask = unused_token(teacher, shard)
    assert mask not in shard.token_set()
    assert mask not in teacher.stop_ids
    assert mask == teacher.tokenizer.unk_token_id == 0
    full = pack([([0, *range(5, 61)], [1, 3, 4])])
    with pytest.raises(OptionError, match="no unused row"):
        unused_token(teacher, full)


def test_features_are_raw_layer_outputs(teacher):
    tokens = torch.randint(5, 61, (2, 9))
    features, final = teacher.states(tokens, (1, 4))
    states = teacher.model(tokens, output_hidden_states=True)
    hidden = states.hidden_states
    assert torch.equal(features, torch.cat((hidden[2], hidden[5]), dim=-1))
    assert torch.equal(teacher.head(final), states.logits)


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
        assert torch.equal(one.blocks(step).tokens, other.blocks(step).tokens)
        assert torch.equal(one.blocks(step).starts, other.blocks(step).starts)
        assert torch.equal(one.sequences(step).tokens, other.sequences(step).tokens)
    assert one.steps_per_epoch == 2
    assert one.blocks(0).labels.shape[-1] == 3
    assert one.blocks(1).labels.shape[-1] == 7
    seen = {tuple(row.tolist())[:6] for step in (0, 1) for row in one.blocks(step).tokens}
    assert len(seen) == len(shard)


def test_sequences_mark_their_answers(shard):
    batch = BatchSource(shard, PLAN).sequences(0)
    rows = {tuple(shard.sequence(i).tolist()): len(shard.sequence(i)) for i in range(len(shard))}
    for tokens, answers in zip(batch.tokens, batch.answers, strict=True):
        length = 4 + int(answers.sum())
        assert rows[tuple(tokens[:length].tolist())] == length
        assert answers.nonzero().flatten().tolist() == list(range(4, length))


def test_answers_too_short_to_learn_from_are_refused():
    with pytest.raises(RequestError, match="no answer of two tokens"):
        BatchSource(pack([([1, 2], [3])]), PLAN)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_context_after_the_anchor_is_unseen(kind, teacher, shard, make_network):
    """Features behind the anchor leave a block alone; DSpark's labels may depend on them."""
    network = make_network(kind)
    batch = block_batch(shard, np.array([4]), 4, 1, 0.5, np.random.default_rng(2))
    end = int(batch.starts[0, 0])
    changed = batch.tokens.clone()
    changed[0, end + 1 :] = 5
    loss = block_loss(network, teacher, batch).parts
    other = block_loss(network, teacher, dataclasses.replace(batch, tokens=changed)).parts
    name = "token" if kind == "dspark" else "unary"
    assert loss[name].item() == pytest.approx(other[name].item(), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind, teacher, shard, tmp_path, make_network):
    network = make_network(kind)
    source, lines = BatchSource(shard, PLAN), []
    with torch.no_grad():
        before = step_loss(network, teacher, source, 0)
    schedule = Schedule(steps=80, rate=5e-3, warmup=5)
    assert train(network, teacher, source, schedule, tmp_path / "c.pt", lines.append) == 80
    with torch.no_grad():
        after = step_loss(network, teacher, source, 0)
    # The target's distribution is random, so what matches it falls less than what matches tokens.
    share = {"dflash": 0.7, "dflash2": 0.7, "dspark": 0.9, "eagle3": 0.95}[kind]
    assert after.loss < share * before.loss
    assert lines[-1].startswith("step 80 ")
    if kind == "dflash2":
        assert after.parts["chosen"] > before.parts["chosen"] + 0.2
        assert network.candidate_selector.successor_codebook.any()
    if kind == "dspark":
        assert after.parts["accepted"] > before.parts["accepted"] + 0.05
        assert after.parts["confidence"] < before.parts["confidence"]
        assert network.markov_head.markov_w2.weight.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_an_uninterrupted_one(kind, teacher, shard, tmp_path, make_network):
    whole, parts = make_network(kind), make_network(kind)
    schedule = Schedule(steps=9, warmup=2)
    train(whole, teacher, BatchSource(shard, PLAN), schedule, tmp_path / "a.pt", str)

    class Interrupted(BatchSource):
        def _members(self, step):
            if step == 5:
                raise KeyboardInterrupt
            return super()._members(step)

    saving = dataclasses.replace(schedule, save_every=2)
    with pytest.raises(KeyboardInterrupt):
        train(parts, teacher, Interrupted(shard, PLAN), saving, tmp_path / "b.pt", str)
    resumed = make_network(kind, seed=99)
    train(resumed, teacher, BatchSource(shard, PLAN), saving, tmp_path / "b.pt", str)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_checkpoint_of_another_network_is_refused(teacher, shard, tmp_path, make_network):
    schedule = Schedule(steps=1)
    source = BatchSource(shard, PLAN)
    train(make_network(), teacher, source, schedule, tmp_path / "c.pt", str)
    for other in (make_network(rank=4), make_network("dflash")):
        with pytest.raises(CheckpointError, match="another network"):
            train(other, teacher, source, schedule, tmp_path / "c.pt", str)


@pytest.mark.parametrize("kind", KINDS)
def test_training_that_diverges_is_stopped(kind, teacher, shard, tmp_path, make_network):
    network = make_network(kind)
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
    both = merged([back, shard])
    assert len(both) == 2 * len(shard)
    assert both.sequence(len(shard) + 2).tolist() == shard.sequence(2).tolist()
    (tmp_path / "s.npz").write_bytes(b"no")
    with pytest.raises(RequestError, match="not a token shard"):
        read_shard(tmp_path / "s.npz")


@pytest.mark.parametrize("kind", KINDS)
def test_reading_back_what_was_written_needs_no_teacher(kind, tmp_path, make_network):
    network = make_network(kind)
    write_network(network, network.config, tmp_path, shard_bytes=2**24)
    back = read_network(tmp_path, torch.bfloat16, "cpu")
    assert back.config.target_layer_ids == network.config.target_layer_ids
    for name, tensor in network.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor.to(back.state_dict()[name].dtype)), name

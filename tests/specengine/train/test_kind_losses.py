"""Losses against plain autograd, and what is trained against what the drafters run."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from specengine.drafters.loading import drafter_of
from specengine.train import chunked
from specengine.train.batches import BatchPlan, BatchSource, block_batch
from specengine.train.block_losses import block_loss, run_blocks
from specengine.train.chunked import chunked_loss
from specengine.train.eagle3_loss import STEP_DECAY, Unrolled, eagle3_loss
from specengine.train.shapes import DrafterShape, drafter_config, fresh_network


@pytest.fixture
def make_network(teacher, shard):
    """A network whose every part matters."""

    def make(kind, **changes):
        shape = DrafterShape(
            kind=kind, layers=1, taps=2, rank=8, block_size=6, unrolled=4, mask_token_id=3,
            **changes,
        )  # fmt: skip
        network = fresh_network(drafter_config(teacher, shape), teacher, shard, 0)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return network

    return make


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_ROWS", 7)


def test_chunks_give_the_loss_and_gradients_of_the_whole(small_chunks):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(20, 8, generator=generator, requires_grad=True)
    head = torch.randn(30, 8, generator=generator, requires_grad=True)
    labels = torch.randint(0, 30, (20,), generator=generator)
    weights = torch.rand(20, generator=generator)

    def body(hidden, labels, weights, head):
        logits = hidden @ head.T
        each = functional.cross_entropy(logits, labels, reduction="none")
        return (each * weights).sum(), (logits.argmax(-1).detach(),)

    loss, (first,) = chunked_loss(body, (hidden, labels, weights), (head,))
    plain, (wanted,) = body(hidden, labels, weights, head)
    torch.testing.assert_close(loss, plain)
    assert torch.equal(first, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, (hidden, head)),
        torch.autograd.grad(3 * plain, (hidden, head)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def _context(drafter, teacher, tokens, length):
    """The state of a draft whose anchor stands at `length`."""
    features, _ = teacher.states(tokens[None], drafter.taps)
    state = drafter.new_state(length)
    drafter.extend(state, features[0, :length], tokens[:length].numpy())
    return state


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_trained_rows_are_those_that_draft(kind, teacher, shard, make_network):
    network = make_network(kind)
    drafter = drafter_of(network, teacher)
    batch = block_batch(shard, np.array([4, 1]), 6, 3, 0.5, np.random.default_rng(2))
    features, _ = teacher.states(batch.tokens, drafter.taps)
    rows = run_blocks(network, teacher, features, batch)[:, :, -5:]
    for sequence in range(2):
        for block, start in enumerate(batch.starts[sequence].tolist()):
            state = _context(drafter, teacher, batch.tokens[sequence], start)
            anchor = int(batch.tokens[sequence, start])
            drafted = drafter.predicting_rows(state, anchor, 5)
            torch.testing.assert_close(rows[sequence, block], drafted, atol=1e-4, rtol=1e-4)


def test_dspark_learns_tokens_distribution_and_acceptance(
    teacher, shard, make_network, small_chunks
):
    """Loss and gradients against the formulas, written out over all rows at once."""
    network = make_network("dspark")
    batch = block_batch(shard, np.array([4, 1]), 6, 4, 0.5, np.random.default_rng(2))
    result = block_loss(network, teacher, batch)
    ours = torch.autograd.grad(result.loss, list(network.parameters()))
    features, final = teacher.states(batch.tokens, network.config.target_layer_ids)
    rows = run_blocks(network, teacher, features, batch)
    used = batch.weights > 0
    hidden, weights = rows[used], batch.weights[used] / batch.weights[used].sum()
    first = network.markov_head.markov_w1(batch.previous[used])
    drafted = (teacher.head(hidden) + network.markov_head.markov_w2(first)).softmax(-1)
    before = [final[s, int(batch.starts[s, a]) + k] for s, a, k in used.nonzero().tolist()]
    target = teacher.head(torch.stack(before)).softmax(-1)
    token = -drafted.gather(1, batch.labels[used][:, None])[:, 0].log()
    distance = (drafted - target).abs().sum(-1)
    accepted = torch.minimum(drafted, target).sum(-1).detach()
    head = network.confidence_head.proj
    estimate = torch.sigmoid(head(torch.cat((hidden, first), -1))[:, 0])
    confidence = -(accepted * estimate.log() + (1 - accepted) * (1 - estimate).log())
    loss = ((0.1 * token + 0.9 * distance + confidence) * weights).sum()
    torch.testing.assert_close(result.loss, loss)
    torch.testing.assert_close(result.parts["accepted"], (accepted * weights).sum())
    for got, wanted in zip(
        ours, torch.autograd.grad(loss, list(network.parameters())), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-3)


def _unrolled(network, teacher, tokens):
    """What the head reads at each step, [steps, n, d], of one sequence."""
    features, _ = teacher.states(tokens[None], network.config.target_layer_ids)
    hidden, attend, read = network.features(features), Unrolled(network.config.window(0)), []
    positions = torch.arange(len(tokens))
    for step in range(network.config.ttt_length):
        ahead = functional.pad(tokens[step + 1 :], (0, step + 1))
        rows, hidden = network(teacher.embed(ahead)[None], hidden, positions[None] + step, attend)
        read.append(rows[0])
    return torch.stack(read)


@pytest.mark.parametrize("size", [40, None])
def test_unrolled_steps_are_those_that_draft(size, teacher, shard, make_network):
    from specengine.drafters.eagle3 import Steps

    network = make_network("eagle3", draft_vocabulary=size)
    drafter = drafter_of(network, teacher)
    tokens = torch.from_numpy(shard.sequence(3).astype(np.int64))
    read = _unrolled(network, teacher, tokens)
    for anchor in (4, 9, 17):
        state = _context(drafter, teacher, tokens, anchor)
        steps = Steps(drafter, state, int(tokens[anchor]), 4)
        logits, hidden = steps.first()
        for step in range(4):
            wanted = drafter.vocabulary.head(read[step, anchor - 1 : anchor])
            torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
            follower = tokens[anchor + 1 + step : anchor + 2 + step]
            logits, hidden = steps.next(follower, hidden, torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("size", [40, None])
def test_eagle3_learns_the_targets_distribution_step_by_step(
    size, teacher, shard, make_network, small_chunks
):
    network = make_network("eagle3", draft_vocabulary=size)
    source = BatchSource(shard, BatchPlan(1, 8, (4,), 0.5, 0))
    batch = source.sequences(0)
    length = 4 + int(batch.answers.sum())
    result = eagle3_loss(network, teacher, batch)
    tokens = batch.tokens[0, :length]
    read = _unrolled(network, teacher, tokens)
    head = teacher.model.get_output_embeddings().weight
    own = range(61) if size is None else (network.d2t + torch.arange(size)).tolist()
    _, final = teacher.states(tokens[None], (1,))
    losses = []
    for step in range(4):
        each = []
        for start in range(3, length - 2 - step):
            if int(tokens[start + 2 + step]) not in own:
                continue
            drafted = (network.lm_head.weight if size else head) @ read[step, start]
            wanted = (head[list(own)] @ final[0, start + 1 + step]).softmax(-1)
            each.append(-(wanted * drafted.log_softmax(-1)).sum())
        losses.append(STEP_DECAY**step * torch.stack(each).mean())
    torch.testing.assert_close(
        result.loss, sum(losses) / sum(STEP_DECAY**step for step in range(4))
    )


def test_windows_hide_what_drafting_does_not_see():
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, 9, 2, 4, generator=generator) for _ in range(3)]
    wide, narrow = Unrolled(None), Unrolled(4)
    first, second = wide(*parts), narrow(*parts)
    assert torch.equal(first[:, :4], second[:, :4])
    assert not torch.isclose(first[:, 4:], second[:, 4:]).all(-1).any()
    # A step later every row stands one place further from the same context.
    keys = parts[1].clone()
    keys[0, 5] = 0.0
    again = Unrolled(4)
    again(parts[0], keys, parts[2])
    same = torch.isclose(again(*parts), narrow(*parts)).all(-1).all(-1)[0]
    assert same.tolist() == [place < 5 or place > 7 for place in range(9)]

"""Losses of the block drafters, teacher-forced over anchored blocks.

DFlash learns by cross-entropy on the target's tokens. DFlash2 adds its selector's choice among the
unary's candidates, after the true previous token. DSpark adds the bias of that token to the unary,
and is held to the target's distribution as well: its candidates are accepted with the probability
that the two distributions share.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from specengine.drafters.network import BlockNetwork, DFlash2Network, DSparkNetwork
from specengine.train.batches import BlockBatch
from specengine.train.chunked import chunked_loss
from specengine.train.teacher import Teacher

CANDIDATES = 16
TOKEN_SHARE, DISTANCE_SHARE = 0.1, 0.9
"""Weights of DSpark's cross-entropy and of its distance from the target's distribution."""


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss of one batch, and the numbers worth a progress line (0-dimensional tensors)."""

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The rows of a batch that have a label, flat.

    Attributes:
        hidden: [n, d], final-normed.
        labels: int64 [n].
        previous: int64 [n], the token before each label.
        weights: float32 [n], which sum to 1.
        target: [n, d], the target's own rows that predict the labels.
    """

    hidden: torch.Tensor
    labels: torch.Tensor
    previous: torch.Tensor
    weights: torch.Tensor
    target: torch.Tensor


def block_loss(network: BlockNetwork, teacher: Teacher, batch: BlockBatch) -> StepLoss:
    """Run target and drafter on a batch; what is learned depends on the network's kind."""
    features, final = teacher.states(batch.tokens, network.config.target_layer_ids)
    hidden = run_blocks(network, teacher, features, batch)
    used = batch.weights > 0
    width = used.shape[-1]
    before = batch.starts[..., None] + torch.arange(width, device=final.device)
    row = torch.arange(len(final), device=final.device)[:, None, None]
    weights = batch.weights[used]
    rows = BlockRows(
        hidden=hidden[:, :, -width:][used].to(teacher.model.dtype),
        labels=batch.labels[used],
        previous=batch.previous[used],
        weights=weights / weights.sum(),
        target=final[row, before.clamp(max=final.shape[1] - 1)][used],
    )
    if isinstance(network, DSparkNetwork):
        return _dspark(network, teacher, rows)
    return _unary(network, teacher, rows)


def run_blocks(
    network: BlockNetwork, teacher: Teacher, features: torch.Tensor, batch: BlockBatch
) -> torch.Tensor:
    """Final-normed rows [S, A, B, d] of a batch's blocks; the last ones predict its labels."""
    shifted = network.config.slots == "shifted"
    width = batch.labels.shape[-1] + (0 if shifted else 1)
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    context = network.context_keys_values(network.context(features), positions)
    blocks = torch.full(
        (*batch.starts.shape, width), network.config.mask_token_id, device=batch.tokens.device
    )
    blocks[..., 0] = batch.tokens.gather(1, batch.starts)
    return network(teacher.embed(blocks), batch.starts, context, positions)


def _unary(network: BlockNetwork, teacher: Teacher, rows: BlockRows) -> StepLoss:
    def body(hidden, labels, weights):  # type: ignore[no-untyped-def]
        logits = network.transform(teacher.head(hidden))
        each = functional.cross_entropy(logits, labels, reduction="none")
        extras = (_ranks(logits, labels),)
        if isinstance(network, DFlash2Network):
            extras += (logits.detach().topk(network.config.selector_top_k).indices,)
        return (each * weights).sum(), extras

    loss, extras = chunked_loss(body, (rows.hidden, rows.labels, rows.weights))
    parts = {"unary": loss, **_shares(extras[0])}
    if isinstance(network, DFlash2Network):
        selector, chosen = _selector(network, teacher, rows, extras[1])
        loss = loss + selector
        parts |= {"selector": selector, "chosen": chosen}
    return StepLoss(loss, {name: value.detach() for name, value in parts.items()})


def _selector(
    network: DFlash2Network,
    teacher: Teacher,
    rows: BlockRows,
    candidates: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of the selector's choice, and the share of labels that it ranks first."""
    head = teacher.model.get_output_embeddings().weight
    unary = network.transform((head[candidates] @ rows.hidden[..., None]).squeeze(-1))
    pairs = network.candidate_selector.pair_scores(rows.hidden, rows.previous[:, None], candidates)
    hit = candidates == rows.labels[:, None]
    scores, held, place = unary + pairs.squeeze(-2), hit.any(-1), hit.int().argmax(-1)
    # A row whose label is no candidate has no right answer; it is left out.
    each = functional.cross_entropy(scores, place, reduction="none")
    kept = rows.weights * held
    loss = (each * kept).sum() / kept.sum().clamp(min=1e-6)
    return loss, ((scores.argmax(-1) == place) & held).float().mean()


def _dspark(network: DSparkNetwork, teacher: Teacher, rows: BlockRows) -> StepLoss:
    head = network.markov_head
    latent, _ = head.latent(rows.previous, rows.hidden, head.new_state(rows.hidden))

    def body(hidden, latent, labels, weights, target, factor):  # type: ignore[no-untyped-def]
        logits = network.transform(teacher.head(hidden)) + functional.linear(latent, factor).float()
        token = functional.cross_entropy(logits, labels, reduction="none")
        with torch.no_grad():
            wanted = teacher.head(target).float().softmax(-1)
        distance = (logits.softmax(-1) - wanted).abs().sum(-1)
        loss = ((TOKEN_SHARE * token + DISTANCE_SHARE * distance) * weights).sum()
        return loss, (_ranks(logits, labels), token.detach(), 1 - distance.detach() / 2)

    loss, (ranks, token, accepted) = chunked_loss(
        body,
        (rows.hidden, latent, rows.labels, rows.weights, rows.target),
        (head.markov_w2.weight,),
    )
    parts = {
        "token": (token * rows.weights).sum(),
        "accepted": (accepted * rows.weights).sum(),
        **_shares(ranks),
    }
    if network.confidence_head is not None:
        scores = network.confidence_head.scores(rows.hidden, head.markov_w1(rows.previous))
        each = functional.binary_cross_entropy_with_logits(scores, accepted, reduction="none")
        confidence = (each * rows.weights).sum()
        loss = loss + confidence
        parts["confidence"] = confidence
    return StepLoss(loss, {name: value.detach() for name, value in parts.items()})


def _ranks(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How many tokens score higher than each label, int64 [n]."""
    logits = logits.detach()
    return (logits > logits.gather(1, labels[:, None])).sum(-1)


def _shares(ranks: torch.Tensor) -> dict[str, torch.Tensor]:
    """Shares of labels that are the first candidate, and that are any."""
    hits = {"accuracy": ranks == 0, "recall": ranks < CANDIDATES}
    return {name: hit.float().mean() for name, hit in hits.items()}

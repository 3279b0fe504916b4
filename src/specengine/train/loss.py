"""Losses of DFlash2 training: hard cross-entropy of the unary, and of the selector's choice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from specengine.drafters.network import DFlash2Network
from specengine.train.batches import BlockBatch
from specengine.train.teacher import Teacher

_CHUNK_ROWS = 8192
Head = Callable[[torch.Tensor], torch.Tensor]


class _FrozenHeadLoss(torch.autograd.Function):
    """Weighted cross-entropy through a frozen head, a chunk of rows at a time.

    Logits of all rows would take gigabytes; since the head is frozen, its gradient is needed for
    the hidden rows only, and each chunk's can be computed at once in the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
        head: Head,
        top_k: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = hidden.new_zeros((), dtype=torch.float32)
        gradient = torch.empty_like(hidden)
        candidates = torch.empty(len(hidden), top_k, dtype=torch.long, device=hidden.device)
        for start in range(0, len(hidden), _CHUNK_ROWS):
            span = slice(start, start + _CHUNK_ROWS)
            with torch.enable_grad():
                rows = hidden[span].detach().requires_grad_()
                logits = head(rows)
                each = functional.cross_entropy(logits.float(), labels[span], reduction="none")
                loss = (each * weights[span]).sum()
                (gradient[span],) = torch.autograd.grad(loss, rows)
            total += loss.detach()
            candidates[span] = logits.detach().topk(top_k, dim=-1).indices
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(candidates)
        return total, candidates

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor, _candidates: torch.Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return gradient * outer, None, None, None, None


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss of one batch and the numbers worth a progress line (0-dimensional tensors)."""

    loss: torch.Tensor
    unary: torch.Tensor
    selector: torch.Tensor
    accuracy: torch.Tensor
    """Share of labels that are the unary's first candidate."""
    recall: torch.Tensor
    """Share of labels among the candidates."""
    chosen: torch.Tensor
    """Share of labels that the selector ranks first, given the true previous token."""


def training_loss(
    network: DFlash2Network, teacher: Teacher, batch: BlockBatch, selector_weight: float
) -> StepLoss:
    """Run target and drafter on a batch."""
    config = network.config
    features = teacher.features(batch.tokens, config.target_layer_ids)
    hidden = run_blocks(network, teacher, features, batch)
    used = batch.weights > 0
    rows, labels = hidden[:, :, 1:][used], batch.labels[used]
    weights = batch.weights[used]
    rows = rows.to(teacher.model.dtype)
    unary, candidates = _FrozenHeadLoss.apply(
        rows, labels, weights, lambda h: network.transform(teacher.head(h)), config.selector_top_k
    )
    unary = unary / weights.sum()
    scores = _selector_scores(network, teacher, rows, batch.previous[used], candidates)
    hit = candidates == labels[:, None]
    held = hit.any(-1)
    # A row whose label is no candidate has no right answer; it is left out.
    each = functional.cross_entropy(scores, hit.int().argmax(-1), reduction="none")
    kept = weights * held
    selector = (each * kept).sum() / kept.sum().clamp(min=1e-6)
    with torch.no_grad():
        chosen = (scores.argmax(-1) == hit.int().argmax(-1)) & held
        shares = [share.float().mean() for share in (hit[:, 0], held, chosen)]
    return StepLoss(unary + selector_weight * selector, unary.detach(), selector.detach(), *shares)


def run_blocks(
    network: DFlash2Network, teacher: Teacher, features: torch.Tensor, batch: BlockBatch
) -> torch.Tensor:
    """Final-normed rows [S, A, B, d] of a batch's blocks."""
    width = batch.labels.shape[-1] + 1
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    context = network.context_keys_values(network.context(features), positions)
    blocks = torch.full(
        (*batch.starts.shape, width), network.config.mask_token_id, device=batch.tokens.device
    )
    blocks[..., 0] = batch.tokens.gather(1, batch.starts)
    return network(teacher.embed(blocks), batch.starts, context, positions)


def _selector_scores(
    network: DFlash2Network,
    teacher: Teacher,
    rows: torch.Tensor,
    previous: torch.Tensor,
    candidates: torch.Tensor,
) -> torch.Tensor:
    head = teacher.model.get_output_embeddings().weight
    unary = network.transform((head[candidates] @ rows[..., None]).squeeze(-1))
    pairs = network.candidate_selector.pair_scores(rows, previous[:, None], candidates)
    return unary + pairs.squeeze(-2)

"""EAGLE-3's loss: several steps unrolled, each reading the layer's own output of the one before.

Every position p of a sequence is the start of a draft. Its row of step 0 pairs the target's feature
at p with the token at p + 1; its row of step j pairs its own output of step j - 1 with the token at
p + 1 + j, stands at position p + j, and predicts the token at p + 2 + j. It sees the rows of step 0
up to p, which drafting has as context, and its own rows of the steps before.
"""

import torch
from torch.nn import functional

from specengine.drafters.eagle3_network import Eagle3Network
from specengine.train.batches import SequenceBatch
from specengine.train.block_losses import StepLoss
from specengine.train.chunked import chunked_loss
from specengine.train.teacher import Teacher

STEP_DECAY = 0.8
"""Weight of a step's loss relative to the one before."""


def eagle3_loss(network: Eagle3Network, teacher: Teacher, batch: SequenceBatch) -> StepLoss:
    """Cross-entropy with the target's probabilities over the draft vocabulary, step by step.

    A label outside the draft vocabulary counts for nothing, and as a miss in the accuracy.
    """
    config = network.config
    tapped, final = teacher.states(batch.tokens, config.target_layer_ids)
    hidden = network.features(tapped)
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    attend = Unrolled(config.window(0))
    total = hidden.new_zeros((), dtype=torch.float32)
    accuracy = []
    for step in range(config.ttt_length):
        embedded = teacher.embed(_ahead(batch.tokens, step + 1)).to(hidden.dtype)
        read, hidden = network(embedded, hidden, (positions + step)[None], attend)
        labels = _ahead(batch.tokens, step + 2)
        used = _ahead(batch.answers, 1) & _ahead(batch.answers, step + 2)
        loss, hit = _step(network, teacher, read[used], _ahead(final, step + 1)[used], labels[used])
        total = total + STEP_DECAY**step * loss
        accuracy.append(hit.mean())
    weight = sum(STEP_DECAY**step for step in range(config.ttt_length))
    parts = {"first": accuracy[0], "last": accuracy[-1], "mean": torch.stack(accuracy).mean()}
    return StepLoss(total / weight, parts)


def _step(
    network: Eagle3Network,
    teacher: Teacher,
    rows: torch.Tensor,
    target: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of one step's rows [n, d], and which labels they rank first, float32 [n]."""
    theirs = teacher.model.get_output_embeddings().weight
    own = theirs if network.lm_head is None else network.lm_head.weight
    places = torch.arange(len(own), device=own.device)
    if network.d2t is not None:
        theirs = theirs[places + network.d2t]
        places = torch.full((teacher.config.vocab_size,), -1, device=own.device).index_copy_(
            0, places + network.d2t, places
        )
    places = places[labels]
    weights = (places >= 0).float()
    weights = weights / weights.sum().clamp(min=1.0)

    def body(rows, target, places, weights, head):  # type: ignore[no-untyped-def]
        scores = functional.linear(rows, head).float().log_softmax(-1)
        wanted = functional.linear(target, theirs).float().softmax(-1)
        loss = -((wanted * scores).sum(-1) * weights).sum()
        return loss, ((scores.argmax(-1) == places).float(),)

    loss, (hit,) = chunked_loss(body, (rows, target, places, weights), (own,))
    return loss, hit


def _ahead(values: torch.Tensor, count: int) -> torch.Tensor:
    """Values [S, n, ...] moved `count` places to the front; zeros follow."""
    moved = torch.zeros_like(values)
    moved[:, : max(values.shape[1] - count, 0)] = values[:, count:]
    return moved


class Unrolled:
    """Attention of training: a call per step, which keeps what later steps see."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._context: tuple[torch.Tensor, torch.Tensor] | None = None
        self._own: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Queries [S, n, heads, D], keys and values [S, n, kv_heads, D] to [S, n, heads, D]."""
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        if self._context is None:
            self._context = (keys, values)
        else:
            self._own.append((keys, values))
        size, shape = query.shape[1], query.shape
        query = query.unflatten(2, (keys.shape[1], -1)).permute(0, 2, 3, 1, 4) * shape[-1] ** -0.5
        far = query @ self._context[0].transpose(-1, -2).unsqueeze(2)
        far = far.masked_fill(~self._visible(size, query.device), float("-inf"))
        near = [(query * own[0].unsqueeze(2)).sum(-1, keepdim=True) for own in self._own]
        weights = torch.cat((far, *near), dim=-1).softmax(-1, dtype=torch.float32).to(values.dtype)
        mixed = weights[..., :size] @ self._context[1].unsqueeze(2)
        for i, own in enumerate(self._own):
            mixed = mixed + weights[..., size + i, None] * own[1].unsqueeze(2)
        return mixed.permute(0, 3, 1, 2, 4).reshape(shape)

    def _visible(self, size: int, device: torch.device) -> torch.Tensor:
        """Bool [n, n]: rows of step 0 up to the draft's start and within the window."""
        slots = torch.arange(size, device=device)
        distance = slots[:, None] - slots
        if self._window is None:
            return distance >= 0
        return (distance >= 0) & (distance + len(self._own) < self._window)

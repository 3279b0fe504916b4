"""Losses over a large vocabulary, a chunk of rows at a time.

Logits of all rows would take gigabytes. A chunk's gradients are taken in the forward pass, where
its logits are at hand, and only gradients of the inputs are kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

CHUNK_ROWS = 2048
Body = Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, ...]]]
"""Some rows' tensors, then the shared ones, to their part of the loss and to extras by row."""


def chunked_loss(
    body: Body, rows: Sequence[torch.Tensor], shared: Sequence[torch.Tensor] = ()
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """The sum of `body` over chunks of rows.

    Args:
        body: computes one chunk; its loss is a sum over rows, its extras carry no gradient.
        rows: tensors [n, ...] that are cut along the first dimension.
        shared: tensors that every chunk reads whole.

    Returns:
        The loss, differentiable in `rows` and `shared`, and the extras of all rows.
    """
    total, *extras = _Chunked.apply(body, len(rows), *rows, *shared)
    return total, tuple(extras)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, body: Body, cut: int, *tensors: torch.Tensor) -> tuple[Any, ...]:
        wanted = [i for i in range(len(tensors)) if ctx.needs_input_grad[i + 2]]
        gradients = {i: torch.zeros_like(tensors[i]) for i in wanted}
        total = tensors[0].new_zeros((), dtype=torch.float32)
        parts: list[tuple[torch.Tensor, ...]] = []
        for start in range(0, len(tensors[0]), CHUNK_ROWS):
            span = slice(start, start + CHUNK_ROWS)
            given = [t[span].detach() if i < cut else t.detach() for i, t in enumerate(tensors)]
            with torch.enable_grad():
                for i in wanted:
                    given[i].requires_grad_()
                loss, extras = body(*given)
            if wanted:
                found = torch.autograd.grad(loss, [given[i] for i in wanted])
                for i, gradient in zip(wanted, found, strict=True):
                    place = gradients[i][span] if i < cut else gradients[i]
                    place += gradient
            total += loss.detach()
            parts.append(extras)
        ctx.wanted, ctx.count = wanted, len(tensors)
        ctx.save_for_backward(*gradients.values())
        joined = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        ctx.mark_non_differentiable(*joined)
        return (total, *joined)

    @staticmethod
    def backward(ctx: Any, outer: torch.Tensor, *_extras: torch.Tensor) -> Any:
        found = dict(zip(ctx.wanted, ctx.saved_tensors, strict=True))
        scaled = (found[i] * outer if i in found else None for i in range(ctx.count))
        return (None, None, *scaled)

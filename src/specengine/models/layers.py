"""Small layers that stand in for Transformers' by name, with equal values and less overhead."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class RootMeanSquareNorm(nn.Module):
    """RMS normalisation in one call.

    Args:
        source: the layer it stands in for.
        centred: the stored weight is an offset from 1, and scales before the result is rounded to
            the model's dtype (Gemma, Qwen3.5); otherwise it scales the rounded result.
    """

    def __init__(self, source: nn.Module, *, centred: bool) -> None:
        super().__init__()
        self.epsilon = float(source.eps if hasattr(source, "eps") else source.variance_epsilon)
        self.centred = centred
        weight = source.weight.detach()
        self.weight = nn.Parameter(1.0 + weight.float() if centred else weight, requires_grad=False)
        self.shape = tuple(weight.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d] to [..., d] in x's dtype."""
        if self.centred:
            return (F.rms_norm(x.float(), self.shape, None, self.epsilon) * self.weight).type_as(x)
        return F.rms_norm(x, self.shape, None, self.epsilon) * self.weight


def joined_linear(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> nn.Linear:
    """One linear layer that computes several of the same input.

    Args:
        weights: [out_i, d] each; concatenated.
        biases: [out_i] each, or none at all.
    """
    weight = torch.cat(list(weights)).detach()
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        linear.bias = nn.Parameter(torch.cat(list(biases)).detach(), requires_grad=False)
    return linear


class JoinedMlp(nn.Module):
    """Gated MLP whose gate and up projections are one product.

    Args:
        source: a Transformers MLP with gate_proj, up_proj, down_proj and act_fn.
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        parts = (source.gate_proj, source.up_proj)
        biases = [part.bias for part in parts if part.bias is not None]
        self.gate_up_proj: nn.Module = joined_linear([part.weight for part in parts], biases)
        self.down_proj = source.down_proj
        self.act_fn = source.act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d] to [..., d]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)

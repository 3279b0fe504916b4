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


class JoinedLinear:
    """Several linear layers of one input, run as one product with concatenated weights.

    Args:
        sources: layers with the same input, all with or all without bias.

    Attributes:
        linear: the one layer; whoever owns the parts registers it as a submodule.
        sizes: output features per source.
    """

    def __init__(self, sources: Sequence[nn.Linear]) -> None:
        first = sources[0]
        self.sizes = [source.out_features for source in sources]
        self.linear = nn.Linear(first.in_features, sum(self.sizes), bias=False, device="meta")
        self.linear.weight = _frozen(torch.cat([source.weight for source in sources]))
        if first.bias is not None:
            self.linear.bias = _frozen(torch.cat([source.bias for source in sources]))


class FirstPart(nn.Module):
    """Stands in for the first of several joined layers: runs the product for all of them.

    The others take their share from it, in the pass that ran it. The calling layer must ask the
    first part first and with the same input, as attention layers do with query, key and value.
    """

    def __init__(self, joined: JoinedLinear) -> None:
        super().__init__()
        self.joined = joined.linear
        self.sizes = joined.sizes
        self.shares: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d] to [..., sizes[0]]; the other shares wait for their parts."""
        first, *rest = self.joined(x).split(self.sizes, dim=-1)
        self.shares = rest
        return first


class LaterPart(nn.Module):
    """Stands in for another of the joined layers; see `FirstPart`."""

    def __init__(self, first: FirstPart, index: int) -> None:
        super().__init__()
        # In a tuple, so that the product is registered once, under the first part.
        self._first = (first,)
        self._index = index

    def forward(self, _x: torch.Tensor) -> torch.Tensor:
        """[..., sizes[index]], computed by the first part."""
        return self._first[0].shares[self._index - 1]


class JoinedMlp(nn.Module):
    """Gated MLP whose gate and up projections are one product.

    Args:
        source: a Transformers MLP with gate_proj, up_proj, down_proj and act_fn.
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.gate_up_proj = JoinedLinear([source.gate_proj, source.up_proj]).linear
        self.down_proj = source.down_proj
        self.act_fn = source.act_fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d] to [..., d]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.act_fn(gate) * up)


def _frozen(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach(), requires_grad=False)

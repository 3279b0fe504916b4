"""Linear layers for the few rows of a decoding step on a CPU.

A plain linear layer reorders its weight on every call; at few rows that costs as much as the
product. One row (AR decoding) needs no reordering: it is a matrix-vector product. For more rows the
weight can be reordered once. Both keep the values, so only the order of summation may differ.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from specengine.errors import OptionError

_PACK_ROWS = 16
"""Row count the layout is chosen for; measured cost is flat from 1 to 32 rows."""
_QUICK_ELEMENTS = 2**20
"""One row times a bfloat16 weight up to this size, without bias, is left to torch's own kernel:
oneDNN's is faster per element, but takes some 30 microseconds to set up each call."""


class RowLinear(nn.Linear):
    """A plain linear layer that takes one row by a matrix-vector product.

    Args:
        source: the layer it stands in for; its parameters are shared, not copied.
    """

    def __init__(self, source: nn.Linear) -> None:
        super().__init__(source.in_features, source.out_features, bias=False, device="meta")
        self.weight = source.weight
        self.bias = source.bias
        small = source.weight.numel() <= _QUICK_ELEMENTS and source.bias is None
        self._quick = small and source.weight.dtype == torch.bfloat16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        if x.numel() != self.in_features:
            return F.linear(x, self.weight, self.bias)
        row = x.reshape(-1)
        if self._quick:
            product = _quick_product(self.weight, row)
        elif self.bias is None:
            product = torch.mv(self.weight, row)
        else:
            product = torch.addmv(self.bias, self.weight, row)
        return product.view(*x.shape[:-1], -1)


class PrepackedLinear(nn.Module):
    """A linear layer with a reordered weight; the plain weight is not kept.

    Args:
        source: the layer it stands in for; CPU, bfloat16 or float32.
    """

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features = source.in_features
        self.out_features = source.out_features
        self.bias = source.bias
        # A plain attribute: reordered tensors cannot be parameters, be moved or be saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(
            source.weight.detach().contiguous(), _PACK_ROWS
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] to [..., out_features]."""
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def plain_weight(self) -> torch.Tensor:
        """[out_features, in_features], the exact original weight, as a new tensor."""
        return self.packed.to_dense()

    def weight_bytes(self) -> int:
        """Bytes of weight that one call reads, the reordering's padding left out."""
        return self.in_features * self.out_features * self.packed.dtype.itemsize


def _quick_product(weight: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    # The switch is the process's: a thread that multiplies meanwhile only gets another kernel.
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        return torch.mv(weight, row)
    finally:
        torch.backends.mkldnn.enabled = before


def require_prepacking(device: torch.device, dtype: torch.dtype) -> None:
    """Check that this machine can reorder and multiply weights of `dtype`.

    Raises:
        OptionError: it cannot.
    """
    reason = _why_not(device, dtype)
    if reason is not None:
        raise OptionError(
            f"'prepacked' is not available ({reason})", where="linear", fix="use 'plain'"
        )


def _why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cpu":
        return f"weights are on {device.type}, and only a CPU reorders them"
    if not torch.backends.mkldnn.is_available():
        return "this torch is built without oneDNN"
    for name in ("_reorder_linear_weight", "_linear_pointwise"):
        if not hasattr(torch.ops.mkldnn, name):
            return f"this torch has no mkldnn.{name}"
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this CPU has no bfloat16 matrix products"
    return None


def replace_linear(module: nn.Module, kind: Callable[[nn.Linear], nn.Module]) -> None:
    """Put `kind` of each plain linear layer inside `module` in its place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, kind(child))
        else:
            replace_linear(child, kind)

"""Linear layers whose weights are reordered once for the CPU's matrix units.

A plain linear layer reorders its weight on every call; at the few rows of a decoding step that
costs as much as the product. The reordered weight holds the same values in another order, so only
the order of summation may differ.
"""

import torch
from torch import nn

from specengine.errors import OptionError

_PACK_ROWS = 16
"""Row count the layout is chosen for; measured cost is flat from 1 to 32 rows."""


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


def prepack(module: nn.Module) -> None:
    """Replace every linear layer inside `module` by a prepacked one, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, PrepackedLinear(child))
        else:
            prepack(child)

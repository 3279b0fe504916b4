"""A linear layer that holds its weight in records and looks like `nn.Linear` from outside."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from specengine.errors import OptionError
from specengine.kernels import ops
from specengine.weights import Packed, decode, encode

FORMATS = ("w12", "w11s")
"""Formats that products are computed from."""


class PackedLinear(nn.Module):
    """y = x @ W.T + b with W in a lossless format.

    `state_dict` shows `weight` in bfloat16, bit for bit as it was, and loading one packs it again:
    checkpoints of the model do not depend on how it computes.

    Args:
        packed: W, [out_features, in_features].
        bias: bfloat16 [out_features], or None.
    """

    records: torch.Tensor
    scale_bits: torch.Tensor
    escapes: torch.Tensor
    escape_offsets: torch.Tensor
    record_offsets: torch.Tensor | None

    def __init__(self, packed: Packed, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        require_format(packed.format)
        self.out_features, self.in_features = packed.shape
        self.bias = bias
        self._hold(packed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """bfloat16 [..., in_features] to [..., out_features].

        A CPU computes exactly what `nn.Linear` would; on a GPU a bias is added to rounded sums.

        Raises:
            OptionError: x has another width.
        """
        if x.shape[-1] != self.in_features:
            # Records reach beyond the last input: kernels would take a few more or fewer.
            raise OptionError(
                f"x has {x.shape[-1]} inputs, the layer {self.in_features}",
                where="packed layer",
                fix="pass rows of the layer's width",
            )
        arrays = (self.records, self.scale, self.escapes, self.escape_offsets)
        if not x.is_cuda:
            return nn.functional.linear(x, self._decoded(*arrays), self.bias)
        y: torch.Tensor
        if self.record_offsets is not None:
            sizes = (self.record_offsets, self.record_bytes)
            y = ops.w11s_linear(x, *arrays, *sizes, self.out_features)
        else:
            y = ops.w12_linear(x, *arrays, self.out_features)
        return y if self.bias is None else y + self.bias

    def _decoded(self, *arrays: torch.Tensor) -> torch.Tensor:
        """W by an op, which compilers do not look into."""
        shape = (self.out_features, self.in_features)
        weight: torch.Tensor
        if self.record_offsets is not None:
            weight = ops.w11s_decode(*arrays, self.record_offsets, *shape)
        else:
            weight = ops.w12_decode(*arrays, *shape)
        return weight

    @property
    def scale(self) -> torch.Tensor:
        """float32, whatever dtype the model is moved to: its bits are kept as integers."""
        return self.scale_bits.view(torch.float32)

    @property
    def packed(self) -> Packed:
        """W in its format."""
        return Packed(
            self.format,
            (self.out_features, self.in_features),
            self.records,
            self.scale,
            self.escapes,
            self.escape_offsets,
            self.record_offsets,
        )

    @property
    def weight(self) -> torch.Tensor:
        """W in bfloat16, decoded anew at each use."""
        return decode(self.packed)

    def weight_bytes(self) -> int:
        """Bytes of weight that one call reads."""
        return self.packed.nbytes

    def extra_repr(self) -> str:
        bits = 8 * self.weight_bytes() / (self.in_features * self.out_features)
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}, bits={bits:.3f}"
        )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Assigning `weight`, as tying does, packs what is assigned."""
        if name == "weight" and param is not None:
            self._pack(param)
        else:
            super().register_parameter(name, param)

    def _pack(self, weight: torch.Tensor) -> None:
        device = self.records.device
        self._hold(encode(weight.to(device=device, dtype=torch.bfloat16), self.format))

    def _hold(self, packed: Packed) -> None:
        self.format, self.record_bytes = packed.format, packed.record_bytes()
        for name, array in packed.arrays().items():
            if name == "scale":
                name, array = "scale_bits", array.view(torch.int32)
            self.register_buffer(name, array, persistent=False)
        if packed.record_offsets is None:
            self.record_offsets = None

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + "weight"
        weight = state_dict.get(key)
        rest = {name: value for name, value in state_dict.items() if name != key}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if weight is None:
            missing_keys.append(key)
        elif tuple(weight.shape) != (self.out_features, self.in_features):
            error_msgs.append(
                f"size mismatch for {key}: {tuple(weight.shape)} from the checkpoint, "
                f"{(self.out_features, self.in_features)} in the model"
            )
        else:
            self._pack(weight)


def replace_linears(model: nn.Module, make: Callable[[str, nn.Linear], nn.Module | None]) -> int:
    """Swap linear layers in place; returns how many.

    A layer in two places stays one layer. Layers with hooks are kept: a hook may be what makes
    their weight, as for normed and pruned ones, and is not told of another layer.

    Args:
        make: the new layer for a name and a layer, or None to keep it.
    """
    made: dict[nn.Module, nn.Module] = {}
    for path, layer in [*model.named_modules(remove_duplicate=False)]:
        hooked = bool(layer._forward_pre_hooks or layer._forward_hooks)
        if type(layer) is not nn.Linear or hooked or not path:
            continue
        new = made.get(layer) or make(path, layer)
        if new is not None:
            made[layer] = new.train(layer.training)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)
    return len(made)


def require_format(name: str) -> None:
    """Check that products can be computed from a format.

    Raises:
        OptionError: they cannot.
    """
    if name not in FORMATS:
        raise OptionError(
            f"'{name}' is no format that layers compute from",
            where="format",
            fix=f"use {' or '.join(FORMATS)}",
        )

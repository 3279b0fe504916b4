"""Custom ops over W12 weights: `torch.ops.specengine.w12_linear` and `w12_decode`.

They work in eager mode, under CUDA graphs (after one call outside) and under torch.compile. On a CPU
the same ops decode in plain torch, which is what the kernels are tested against.
"""

import torch
from torch import Tensor

from specengine.errors import OptionError
from specengine.kernels import w12_linear as kernels
from specengine.weights import Packed
from specengine.weights import decode as decode_in_torch

HOPPER = (9, 0)
CHUNKED_ROWS = 256
"""Up to here rows go through the kernel 64 at a time; beyond, decoding W once costs less."""


def _packed(
    records: Tensor, scale: Tensor, escapes: Tensor, escape_offsets: Tensor, shape: tuple[int, int]
) -> Packed:
    return Packed("w12", shape, records, scale, escapes, escape_offsets)


def _check(x: Tensor, records: Tensor, out_features: int) -> None:
    tiles, blocks = -(-out_features // 128), -(-x.shape[-1] // 64)
    expected = tiles * blocks * kernels.RECORD_BYTES
    if x.dtype != torch.bfloat16 or records.numel() != expected:
        raise OptionError(
            f"x is {x.dtype} of width {x.shape[-1]}, and {records.numel()} bytes of records are "
            f"not the {expected} of [{out_features}, {x.shape[-1]}]",
            where="w12_linear",
            fix="pass bfloat16 rows of the width that the weight was packed with",
        )


@torch.library.custom_op("specengine::w12_decode", mutates_args=())
def w12_decode(
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    out_features: int,
    in_features: int,
) -> Tensor:
    """W as bf16 [out_features, in_features], bit for bit."""
    if not records.is_cuda:
        shape = (out_features, in_features)
        return decode_in_torch(_packed(records, scale, escapes, escape_offsets, shape))
    out = torch.empty(out_features, in_features, dtype=torch.bfloat16, device=records.device)
    kernels.decode(kernels.Weights(records, scale, escapes, escape_offsets), out)
    return out


@w12_decode.register_fake
def _(
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    out_features: int,
    in_features: int,
) -> Tensor:
    return records.new_empty((out_features, in_features), dtype=torch.bfloat16)


@torch.library.custom_op("specengine::w12_linear", mutates_args=())
def w12_linear(
    x: Tensor,
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    out_features: int,
) -> Tensor:
    """x @ W.T: bf16 [..., K] to bf16 [..., out_features], sums in FP32.

    On a Hopper GPU up to 64 rows take one launch, and a row's bits do not depend on the rows beside it
    up to CHUNKED_ROWS of them. More rows, other GPUs and CPUs multiply by the decoded matrix.

    Raises:
        OptionError: x or the records do not fit together.
        KernelError: the kernel cannot be built or launched here.
    """
    _check(x, records, out_features)
    rows = x.reshape(-1, x.shape[-1])
    hopper = x.is_cuda and torch.cuda.get_device_capability(x.device) == HOPPER
    if not hopper or rows.shape[0] > CHUNKED_ROWS:
        matrix = w12_decode(records, scale, escapes, escape_offsets, out_features, x.shape[-1])
        return torch.nn.functional.linear(x, matrix)
    weights = kernels.Weights(records, scale, escapes, escape_offsets)
    y = torch.empty(rows.shape[0], out_features, dtype=torch.bfloat16, device=x.device)
    rows = _aligned(rows)
    for start in range(0, rows.shape[0], kernels.MAX_ROWS):
        part = slice(start, start + kernels.MAX_ROWS)
        kernels.multiply(rows[part], weights, y[part])
    return y.view(*x.shape[:-1], out_features)


@w12_linear.register_fake
def _(
    x: Tensor,
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    out_features: int,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


def _aligned(rows: Tensor) -> Tensor:
    """Rows as the copy engine takes them: starts at multiples of 16 bytes, zeros past K."""
    if rows.shape[1] % 8:
        return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    fits = rows.stride(1) == 1 and rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0
    return rows if fits else rows.clone(memory_format=torch.contiguous_format)

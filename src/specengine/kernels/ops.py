"""Custom ops over packed weights: `torch.ops.specengine.w12_linear` and its siblings.

They work in eager mode, under CUDA graphs (after one call outside) and under torch.compile. On a
CPU the same ops decode in plain torch, which is what the kernels are tested against.

Lossless ops: up to 64 rows take one launch on a Hopper GPU, and a row's bits do not depend on the
rows beside it up to CHUNKED_ROWS of them. More rows, and other devices, multiply by the decoded W.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specengine.errors import OptionError
from specengine.kernels import packed_linear as kernels
from specengine.weights import LowBit, Packed, decode_low_bit, decode_view
from specengine.weights import decode as decode_in_torch

HOPPER = (9, 0)
CHUNKED_ROWS = 256
"""Up to here rows go through the kernel 64 at a time; beyond, decoding W once costs less."""


@torch.library.custom_op("specengine::w12_decode", mutates_args=())
def w12_decode(
    records: Tensor, scale: Tensor, escapes: Tensor, escape_offsets: Tensor, out: int, width: int
) -> Tensor:
    """W of format `w12` as bf16 [out, width], bit for bit."""
    return _decoded(kernels.Weights("w12", records, scale, escapes, escape_offsets), out, width)


@torch.library.custom_op("specengine::w12_linear", mutates_args=())
def w12_linear(
    x: Tensor, records: Tensor, scale: Tensor, escapes: Tensor, escape_offsets: Tensor, out: int
) -> Tensor:
    """x @ W.T with W of format `w12`: bf16 [..., K] to bf16 [..., out], sums in FP32.

    Raises:
        OptionError: x or the records do not fit together.
        KernelError: the kernel cannot be built or launched here.
    """
    weights = kernels.Weights("w12", records, scale, escapes, escape_offsets)
    return _linear(x, weights, out, lambda: _decoded(weights, out, x.shape[-1]))


@torch.library.custom_op("specengine::w11s_decode", mutates_args=())
def w11s_decode(
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    record_offsets: Tensor,
    out: int,
    width: int,
) -> Tensor:
    """W of format `w11s` as bf16 [out, width], bit for bit."""
    weights = kernels.Weights("w11s", records, scale, escapes, escape_offsets, record_offsets)
    return _decoded(weights, out, width)


@torch.library.custom_op("specengine::w11s_linear", mutates_args=())
def w11s_linear(
    x: Tensor,
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    record_offsets: Tensor,
    out: int,
) -> Tensor:
    """x @ W.T with W of format `w11s`; see `w12_linear`."""
    weights = kernels.Weights("w11s", records, scale, escapes, escape_offsets, record_offsets)
    return _linear(x, weights, out, lambda: _decoded(weights, out, x.shape[-1]))


@torch.library.custom_op("specengine::view_linear", mutates_args=())
def view_linear(x: Tensor, records: Tensor, scale: Tensor, out: int) -> Tensor:
    """x @ V.T with V the 8-bit view of `w12n` records, for a Q pass; see `w12_linear`."""
    weights = kernels.Weights("w12n_view", records, scale)

    def view() -> Tensor:
        empty = torch.empty(0, dtype=torch.int32, device=x.device)
        return decode_view(Packed("w12n", (out, x.shape[-1]), records, scale, empty, empty))

    return _linear(x, weights, out, view)


@torch.library.custom_op("specengine::low_bit_linear", mutates_args=())
def low_bit_linear(x: Tensor, format: str, records: Tensor, scale: Tensor, out: int) -> Tensor:
    """x @ Q.T with Q a low-bit copy (`e2m5`, `e2m4` or `e2m3`), for a Q pass; see `w12_linear`."""
    weights = kernels.Weights(format, records, scale)
    copy = LowBit(format, (out, x.shape[-1]), records, scale)
    return _linear(x, weights, out, lambda: decode_low_bit(copy).to(x.dtype))


@w12_decode.register_fake
def _(
    records: Tensor, scale: Tensor, escapes: Tensor, escape_offsets: Tensor, out: int, width: int
) -> Tensor:
    return records.new_empty((out, width), dtype=torch.bfloat16)


@w11s_decode.register_fake
def _(
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    record_offsets: Tensor,
    out: int,
    width: int,
) -> Tensor:
    return records.new_empty((out, width), dtype=torch.bfloat16)


@w12_linear.register_fake
def _(
    x: Tensor, records: Tensor, scale: Tensor, escapes: Tensor, escape_offsets: Tensor, out: int
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


@w11s_linear.register_fake
def _(
    x: Tensor,
    records: Tensor,
    scale: Tensor,
    escapes: Tensor,
    escape_offsets: Tensor,
    record_offsets: Tensor,
    out: int,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


@view_linear.register_fake
def _(x: Tensor, records: Tensor, scale: Tensor, out: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


@low_bit_linear.register_fake
def _(x: Tensor, format: str, records: Tensor, scale: Tensor, out: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], out))


def _decoded(weights: kernels.Weights, out: int, width: int) -> Tensor:
    if not weights.records.is_cuda:
        return decode_in_torch(Packed(weights.format, (out, width), **weights.tensors()))
    matrix = torch.empty(out, width, dtype=torch.bfloat16, device=weights.records.device)
    kernels.decode(weights, matrix)
    return matrix


def _linear(x: Tensor, weights: kernels.Weights, out: int, matrix: Callable[[], Tensor]) -> Tensor:
    _check(x, weights, out)
    rows = x.reshape(-1, x.shape[-1])
    hopper = x.is_cuda and torch.cuda.get_device_capability(x.device) == HOPPER
    if not hopper or rows.shape[0] > CHUNKED_ROWS:
        return torch.nn.functional.linear(x, matrix())
    y = torch.empty(rows.shape[0], out, dtype=torch.bfloat16, device=x.device)
    rows = _aligned(rows)
    for start in range(0, rows.shape[0], kernels.MAX_ROWS):
        part = slice(start, start + kernels.MAX_ROWS)
        kernels.multiply(rows[part], weights, y[part])
    return y.view(*x.shape[:-1], out)


def _check(x: Tensor, weights: kernels.Weights, out: int) -> None:
    width, stride = x.shape[-1], kernels.FORMATS[weights.format].stride_bytes
    units = -(-out // kernels.TILE_CHANNELS) * -(-width // kernels.TILE_K)
    offsets = weights.record_offsets
    found = weights.records.numel() // stride if offsets is None else offsets.numel() - 1
    if x.dtype != torch.bfloat16 or found != units or weights.units(width) != units:
        raise OptionError(
            f"x is {x.dtype} of width {width}, and {found} records are not the {units} of "
            f"[{out}, {width}]",
            where=f"{weights.format} weight",
            fix="pass bfloat16 rows of the width that the weight was packed with",
        )


def _aligned(rows: Tensor) -> Tensor:
    """Rows as the copy engine takes them: starts at multiples of 16 bytes, zeros past K."""
    if rows.shape[1] % 8:
        return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    fits = rows.stride(1) == 1 and rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0
    return rows if fits else rows.clone(memory_format=torch.contiguous_format)

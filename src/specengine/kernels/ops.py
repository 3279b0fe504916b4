"""Custom ops over packed weights: `torch.ops.specengine.w12_linear` and its siblings.

They work in eager mode, under CUDA graphs (after one call outside) and under torch.compile. On a
CPU the same ops decode in plain torch, which is what the kernels are tested against.

Up to 64 rows take one launch on a Hopper GPU, and on others since sm_80 (but for w11s); a row's
bits do not depend on the rows beside it up to CHUNKED_ROWS of them. More rows, and other devices,
multiply by the decoded W.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from specengine.errors import OptionError
from specengine.kernels import certified_head, portable_linear
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
    record_bytes: int,
    out: int,
) -> Tensor:
    """x @ W.T with W of format `w11s`; see `w12_linear`, and `Packed.record_bytes`."""
    arrays = (records, scale, escapes, escape_offsets, record_offsets)
    weights = kernels.Weights("w11s", *arrays, record_bytes)
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


@torch.library.custom_op("specengine::certified_argmax", mutates_args=())
def certified_argmax(
    hidden: Tensor,
    head: Tensor,
    records: Tensor,
    scale: Tensor,
    residual_norm: Tensor,
    weight_norm: Tensor,
) -> tuple[Tensor, Tensor]:
    """The argmax of exact logits (`certified_head.exact_logits`), ties to the lowest row.

    Args:
        hidden: bf16 [..., K], K a multiple of 8.
        head: bf16 [V, K], contiguous.
        records, scale, residual_norm, weight_norm: its 8-bit copy, see `encode_head`.

    Returns:
        int64 [...], and int32 [...]: how many logits were computed from the BF16 head.

    Raises:
        OptionError: hidden states, head and copy do not fit together.
        KernelError: a kernel cannot be built or launched here.
    """
    copy = kernels.Weights("e2m5", records, scale)
    _check_head(hidden, head)
    _check(hidden, copy, head.shape[0])
    states = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    tokens = torch.empty(states.shape[0], dtype=torch.int64, device=hidden.device)
    counts = torch.full_like(tokens, head.shape[0], dtype=torch.int32)
    if hidden.is_cuda:
        whole = certified_head.Head(head, copy, residual_norm, weight_norm)
        for start in range(0, states.shape[0], kernels.MAX_ROWS):
            part = slice(start, start + kernels.MAX_ROWS)
            certify = certified_head.is_worthwhile(head)
            certified_head.argmax(states[part], whole, tokens[part], counts[part], certify)
    else:
        tokens = certified_head.exact_logits(states, head).argmax(1)
    return tokens.view(hidden.shape[:-1]), counts.view(hidden.shape[:-1])


def _fake_decode(records: Tensor, *others: Tensor | int) -> Tensor:
    return records.new_empty(others[-2:], dtype=torch.bfloat16)


def _fake_linear(x: Tensor, *others: Tensor | int | str) -> Tensor:
    return x.new_empty((*x.shape[:-1], others[-1]))


def _fake_argmax(hidden: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    shape = hidden.shape[:-1]
    return hidden.new_empty(shape, dtype=torch.int64), hidden.new_empty(shape, dtype=torch.int32)


for _op in (w12_decode, w11s_decode):
    _op.register_fake(_fake_decode)
for _op in (w12_linear, w11s_linear, view_linear, low_bit_linear):
    _op.register_fake(_fake_linear)
certified_argmax.register_fake(_fake_argmax)


def _decoded(weights: kernels.Weights, out: int, width: int) -> Tensor:
    if not weights.records.is_cuda:
        return decode_in_torch(Packed(weights.format, (out, width), **weights.tensors()))
    matrix = torch.empty(out, width, dtype=torch.bfloat16, device=weights.records.device)
    kernels.decode(weights, matrix)
    return matrix


def _linear(x: Tensor, weights: kernels.Weights, out: int, matrix: Callable[[], Tensor]) -> Tensor:
    _check(x, weights, out)
    rows = x.reshape(-1, x.shape[-1])
    multiply = _multiplier(x.device, weights.format)
    if multiply is None or rows.shape[0] > CHUNKED_ROWS:
        return torch.nn.functional.linear(x, matrix())
    y = torch.empty(rows.shape[0], out, dtype=torch.bfloat16, device=x.device)
    rows = _aligned(rows)
    for start in range(0, rows.shape[0], kernels.MAX_ROWS):
        part = slice(start, start + kernels.MAX_ROWS)
        multiply(rows[part], weights, y[part])
    return y.view(*x.shape[:-1], out)


def _multiplier(device: torch.device, name: str) -> Callable[..., None] | None:
    """The kernel that multiplies by a format on a device, or None."""
    if device.type != "cuda":
        return None
    capability = torch.cuda.get_device_capability(device)
    if capability == HOPPER:
        return kernels.multiply
    return portable_linear.multiply if portable_linear.multiplies(name, capability) else None


def _check(x: Tensor, weights: kernels.Weights, out: int) -> None:
    width, stride = x.shape[-1], kernels.FORMATS[weights.format].stride_bytes
    units = -(-out // kernels.TILE_CHANNELS) * -(-width // kernels.TILE_K)
    offsets, size = weights.record_offsets, stride or weights.record_bytes
    found = units if offsets is None else offsets.numel() - 1
    if size and found == units:
        found = weights.records.numel() // size
    if x.dtype != torch.bfloat16 or found != units or weights.units(width) != units:
        raise OptionError(
            f"x is {x.dtype} of width {width}, and {found} records are not the {units} of "
            f"[{out}, {width}]",
            where=f"{weights.format} weight",
            fix="pass bfloat16 rows of the width that the weight was packed with",
        )


def _check_head(hidden: Tensor, head: Tensor) -> None:
    fits = head.dtype == torch.bfloat16 and head.shape[1] == hidden.shape[-1]
    if not fits or head.shape[1] % 8 or not head.is_contiguous():
        raise OptionError(
            f"the head is {head.dtype} {list(head.shape)}, hidden states have {hidden.shape[-1]}",
            where="certified argmax",
            fix="pass a contiguous bfloat16 head [V, K] with K a multiple of 8, and states of K",
        )


def _aligned(rows: Tensor) -> Tensor:
    """Rows as the copy engine takes them: starts at multiples of 16 bytes, zeros past K."""
    if rows.shape[1] % 8:
        return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    fits = rows.stride(1) == 1 and rows.stride(0) % 8 == 0 and rows.data_ptr() % 16 == 0
    return rows if fits else rows.clone(memory_format=torch.contiguous_format)

"""The next token from an LM head, exactly, while reading half of its bytes (paper section 4.1).

A first pass multiplies the hidden state h by the 8-bit copy of the head (`encode_head`). The logit
of a row w = scale * q + r, in the arithmetic below, is within

    ||r|| * ||h||  +  (1.3 * K + 64) * 2 ** -23 * (||w|| + ||r||) * ||h||

of what that pass yields: Cauchy-Schwarz for r, and what the two sums may lose. A tensor core adds
16 products to a sum at a time; 20 terms or sums that each lose a unit of the largest one are 1.25
units an input; the exact sum rounds K / 32 + 5 times in each lane; the rest is for the scale and
the parts of a tile. A row whose upper bound lies below another's lower bound is not the argmax.
Rows that are left are read as BF16 and decided by their exact logits, ties by the lowest row. Rows
or states with infinities or NaN, or near overflow, are never excluded.

Where a sample of the head says that more than half of the rows would be left, none of this is
tried and the whole head is read (`head_judge.cu`); so it is for small heads, and on GPUs without
Hopper's instructions. The first is decided on the device.

An exact logit is a sum of FP32-rounded products in FP32, in the order that `exact_logits` states:
the argmax of these is what every path returns.
"""

import ctypes
import functools
from dataclasses import dataclass

import torch

from specengine.kernels.driver import Kernel, load
from specengine.kernels.packed_linear import TILE_CHANNELS, Weights, multiply, multiprocessors
from specengine.kernels.workspace import workspace

THREADS = 512
LANES, LANE_INPUTS = 32, 8
STATE_WORDS = 195
SPARSEST_SAMPLE, SAMPLED_TILES = 128, 12
"""A sample takes every 128th tile, or more often, so that it has 12."""
WORTHWHILE_BYTES = 256 << 20
"""Of a BF16 head: reading a smaller one takes less time than a second pass takes to start."""


@dataclass(frozen=True, slots=True)
class Head:
    """An LM head on a CUDA device.

    Attributes:
        matrix: bf16 [V, K], contiguous.
        copy: its 8-bit copy.
        residual_norm, weight_norm: float32 [V padded to 128], see `HeadCopy`.
    """

    matrix: torch.Tensor
    copy: Weights
    residual_norm: torch.Tensor
    weight_norm: torch.Tensor


class _Judgement(ctypes.Structure):
    """`Arguments` of head_judge.cu."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("hidden", "approximate", "residual", "weight", "norms", "dense")
        ),
        *((name, ctypes.c_int) for name in ("width", "channels", "tile_step")),
        ("accumulation", ctypes.c_float),
    )


_SETTLED = "hidden head approximate residual weight norms dense lows list masks state tokens counts"


class _Settlement(ctypes.Structure):
    """`Arguments` of head_settle.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _SETTLED.split()),
        *((name, ctypes.c_int) for name in ("rows", "channels", "width")),
        ("accumulation", ctypes.c_float),
    )


def exact_logits(hidden: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Logits float32 [rows, V] in the arithmetic that decides, in plain torch.

    Input k belongs to lane k // 8 % 32. A lane adds its products in the order of k; lanes 16, 8, 4,
    2 and 1 apart are added in turn.
    """
    step = LANES * LANE_INPUTS
    stretch = max(1, (1 << 24) // head.shape[1])
    parts = [_sums(hidden, head[i : i + stretch], step) for i in range(0, head.shape[0], stretch)]
    return torch.cat(parts, 1)


def _sums(hidden: torch.Tensor, head: torch.Tensor, step: int) -> torch.Tensor:
    padding = (0, -head.shape[1] % step)
    shape = (-1, LANES, LANE_INPUTS)
    weights = torch.nn.functional.pad(head.float(), padding).unflatten(1, shape)
    states = torch.nn.functional.pad(hidden.float(), padding).unflatten(1, shape)
    logits = torch.empty(hidden.shape[0], head.shape[0], device=head.device)
    for row, state in enumerate(states):
        sums = torch.zeros(head.shape[0], LANES, device=head.device)
        for i in range(state.shape[0]):
            for j in range(LANE_INPUTS):
                sums += weights[:, i, :, j] * state[i, :, j]
        for apart in (16, 8, 4, 2, 1):
            sums = sums + sums[:, torch.arange(LANES, device=head.device) ^ apart]
        logits[row] = sums[:, 0]
    return logits


def accumulation(width: int) -> float:
    """What both sums may lose, relative to the norms; rounded up to float32."""
    return (1.3 * width + 64) * 2.0**-23 * (1 + 2.0**-20)


def is_worthwhile(head: torch.Tensor) -> bool:
    """Whether the certificate can beat reading the head."""
    return _hopper(head.get_device()) and head.nbytes >= WORTHWHILE_BYTES


def _hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


@functools.cache
def _kernel(name: str, device: int) -> Kernel:
    return load(name, device, (), THREADS, 0)


def argmax(
    hidden: torch.Tensor, head: Head, tokens: torch.Tensor, counts: torch.Tensor, certify: bool
) -> None:
    """Fill `tokens` with the argmax of each hidden state's exact logits.

    Args:
        hidden: bf16 [1..64, K], contiguous, 16-byte aligned, K % 8 == 0.
        tokens: int64 [rows].
        counts: int32 [rows], filled with how many logits were computed from the BF16 head.
        certify: use the copy (needs a Hopper GPU); else read the whole head.

    Raises:
        KernelError: see `driver.load`.
    """
    device, stream = hidden.get_device(), torch.cuda.current_stream(hidden.device).cuda_stream
    rows, (channels, width) = hidden.shape[0], head.matrix.shape
    blocks = multiprocessors(device)
    found: dict[str, torch.Tensor] = {}
    if certify:
        found = _bounds(hidden, head)
        found["lows"] = found["dense"].new_empty(blocks, rows)
        found["list"] = found["dense"].new_empty(channels)
        found["masks"] = tokens.new_empty(channels)
    arguments = _Settlement(
        hidden=hidden.data_ptr(),
        head=head.matrix.data_ptr(),
        residual=head.residual_norm.data_ptr(),
        weight=head.weight_norm.data_ptr(),
        state=workspace(device, stream, STATE_WORDS),
        tokens=tokens.data_ptr(),
        counts=counts.data_ptr(),
        rows=rows,
        channels=channels,
        width=width,
        accumulation=accumulation(width),
        **{name: tensor.data_ptr() for name, tensor in found.items()},
    )
    with torch.cuda.device(device):
        kernel = _kernel("head_settle", device)
        kernel.launch(blocks, (arguments,), stream=stream, dependent=_hopper(device))


def _bounds(hidden: torch.Tensor, head: Head) -> dict[str, torch.Tensor]:
    """The pass over the copy, unless a sample of it says that it is in vain for all states."""
    device, stream = hidden.get_device(), torch.cuda.current_stream(hidden.device).cuda_stream
    rows, (channels, width) = hidden.shape[0], head.matrix.shape
    step = max(1, min(SPARSEST_SAMPLE, -(-channels // TILE_CHANNELS) // SAMPLED_TILES))
    approximate = torch.empty(rows, channels, device=hidden.device)
    norms = torch.empty(rows, device=hidden.device)
    dense = torch.empty(rows, dtype=torch.int32, device=hidden.device)
    multiply(hidden, head.copy, approximate, tile_step=step)
    arguments = _Judgement(
        hidden=hidden.data_ptr(),
        approximate=approximate.data_ptr(),
        residual=head.residual_norm.data_ptr(),
        weight=head.weight_norm.data_ptr(),
        norms=norms.data_ptr(),
        dense=dense.data_ptr(),
        width=width,
        channels=channels,
        tile_step=step,
        accumulation=accumulation(width),
    )
    with torch.cuda.device(device):
        kernel = _kernel("head_judge", device)
        kernel.launch(rows, (arguments,), stream=stream, dependent=True)
    multiply(hidden, head.copy, approximate, skip=dense)
    return {"approximate": approximate, "norms": norms, "dense": dense}

"""x @ W.T with W in records on GPUs without Hopper's instructions (`packed_mma.cu`)."""

import ctypes
import functools

import torch

from specengine.kernels.driver import Kernel, load
from specengine.kernels.packed_linear import (
    FORMATS,
    TILE_CHANNELS,
    TILE_K,
    TILE_ROWS,
    Weights,
    multiprocessors,
)
from specengine.kernels.workspace import workspace

THREADS, STAGES = 256, 4
BLOCKS_OF_A_MULTIPROCESSOR = 2
LEAST_RECORDS = 8
"""Of a thread block, so that its start and the sum of parts stay small beside its records."""

_POINTERS = "x records scale escapes escape_offsets y parts tickets"


class _Product(ctypes.Structure):
    """`Arguments` of packed_mma.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        *(
            (name, ctypes.c_int)
            for name in ("rows", "channels", "width", "x_stride", "k_blocks", "cuts")
        ),
    )


def multiplies(name: str, capability: tuple[int, int]) -> bool:
    """Whether the kernel takes a format (key of FORMATS) on a device."""
    return capability >= (8, 0) and FORMATS[name].stride_bytes > 0


def cuts_for(tiles: int, k_blocks: int, multiprocessors: int) -> int:
    """Thread blocks of a tile. They fix the order of its sums, so rows must not matter."""
    wanted = -(-BLOCKS_OF_A_MULTIPROCESSOR * multiprocessors // tiles)
    return max(1, min(wanted, k_blocks // LEAST_RECORDS))


def defines_for(name: str, rows: int, output: str = "u16") -> tuple[str, ...]:
    """Definitions for the compiler; `rows` is one of TILE_ROWS."""
    return (f"FORMAT={FORMATS[name].macro}", f"ROWS={rows}", f"OUTPUT={output}")


@functools.cache
def _kernel(name: str, rows: int, output: str, device: int) -> Kernel:
    shared = STAGES * (FORMATS[name].read_bytes + rows * 2 * TILE_K)
    return load("packed_mma", device, defines_for(name, rows, output), THREADS, shared)


def multiply(x: torch.Tensor, weights: Weights, y: torch.Tensor) -> None:
    """Fill y = x @ W.T. A row's bits do not depend on the other rows.

    Args:
        x: bf16 [1..64, K], K % 8 == 0, unit stride along K, 16-byte aligned rows.
        weights: of a format whose records have one size.
        y: bf16 or float32 [rows, out], contiguous.

    Raises:
        KernelError: see `driver.load`.
    """
    device, stream = y.get_device(), torch.cuda.current_stream(y.device).cuda_stream
    tile_rows = next(rows for rows in TILE_ROWS if rows >= x.shape[0])
    k_blocks = -(-x.shape[1] // TILE_K)
    tiles = weights.units(x.shape[1]) // k_blocks
    cuts = cuts_for(tiles, k_blocks, multiprocessors(device))
    parts = torch.empty(cuts * tiles * TILE_CHANNELS * tile_rows, device=y.device)
    arguments = _Product(
        **weights.pointers(),
        x=x.data_ptr(),
        y=y.data_ptr(),
        parts=parts.data_ptr(),
        tickets=workspace(device, stream, tiles),
        rows=x.shape[0],
        channels=y.shape[1],
        width=x.shape[1],
        x_stride=x.stride(0),
        k_blocks=k_blocks,
        cuts=cuts,
    )
    kernel = _kernel(
        weights.format, tile_rows, "float" if y.dtype == torch.float32 else "u16", device
    )
    with torch.cuda.device(device):
        kernel.launch(cuts * tiles, (arguments,), stream=stream, dependent=False)

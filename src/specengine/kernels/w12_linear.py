"""x @ W.T with W in W12 records: how a product is cut into thread blocks, and its launch.

Format: paper section 4.1; kernels: `w12_gemm.cu`, `w12_decode.cu`; the op that users call: `ops.py`.
"""

import ctypes
import functools
from dataclasses import dataclass

import torch

from specengine.kernels.driver import Kernel, describe_rows, load
from specengine.kernels.workspace import workspace

TILE_CHANNELS, TILE_K, RECORD_BYTES = 128, 64, 12288
MAX_ROWS = 64
"""Rows of one launch."""
THREADS, DECODE_THREADS = 320, 256
EVEN_SHARE, EVEN_RECORDS = 0.84, 84
"""When whole tiles go to thread blocks: multiprocessors in use, and records of a block, see below."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the product's kernel.

    Attributes:
        rows: rows of the tile: x's rows rounded up.
        stages: records in the ring, 12 KB each.
        x_stages: tiles of x in the ring.
    """

    rows: int
    stages: int
    x_stages: int

    def shared_bytes(self) -> int:
        rings = self.stages * (RECORD_BYTES + 16) + self.x_stages * (self.rows * 128 + 8)
        return rings + TILE_CHANNELS * self.rows * 4

    def defines(self) -> tuple[str, ...]:
        return f"ROWS={self.rows}", f"STAGES={self.stages}", f"X_STAGES={self.x_stages}"


VARIANTS = (
    Variant(8, 16, 16),
    Variant(16, 14, 14),
    Variant(32, 12, 12),
    Variant(48, 11, 11),
    Variant(64, 10, 8),
)


def variant_for(rows: int) -> Variant:
    """The narrowest variant that holds `rows` rows, 1 to 64."""
    return next(variant for variant in VARIANTS if variant.rows >= rows)


def blocks_for(tiles: int, k_blocks: int, multiprocessors: int) -> int:
    """Thread blocks that share a product. They fix the order of its sums, so rows must not matter.

    An equal number of blocks for each tile ends them all at once with few sums to exchange, which
    pays where few multiprocessors idle and streams are short; else records are split evenly.
    """
    units = tiles * k_blocks
    if tiles <= multiprocessors:
        even = tiles * min(multiprocessors // tiles, k_blocks)
        if even >= multiprocessors * EVEN_SHARE and units <= even * EVEN_RECORDS:
            return even
    return min(multiprocessors, units)


class _Product(ctypes.Structure):
    """`Arguments` of w12_gemm.cu."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("escapes", ctypes.c_void_p),
        ("escape_offsets", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("partials", ctypes.c_void_p),
        ("rows", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("k_blocks", ctypes.c_int),
        ("units", ctypes.c_int),
        ("dependent", ctypes.c_int),
    )


class _Decoding(ctypes.Structure):
    """`Arguments` of w12_decode.cu."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("escapes", ctypes.c_void_p),
        ("escape_offsets", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("channels", ctypes.c_int),
        ("width", ctypes.c_int),
        ("k_blocks", ctypes.c_int),
        ("first_record", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [out, K] in W12 records on a CUDA device; `specengine.weights.Packed` says the rest."""

    records: torch.Tensor
    scale: torch.Tensor
    escapes: torch.Tensor
    escape_offsets: torch.Tensor

    def pointers(self) -> dict[str, int]:
        return {
            "records": self.records.data_ptr(),
            "scale": self.scale.data_ptr(),
            "escapes": self.escapes.data_ptr(),
            "escape_offsets": self.escape_offsets.data_ptr(),
        }

    @property
    def units(self) -> int:
        return self.records.numel() // RECORD_BYTES


@functools.cache
def _product_kernel(variant: Variant, device: int) -> Kernel:
    return load("w12_gemm", device, variant.defines(), THREADS, variant.shared_bytes())


@functools.cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def multiply(x: torch.Tensor, weights: Weights, y: torch.Tensor, *, dependent: bool = True) -> None:
    """Fill y = x @ W.T on a Hopper GPU. A row's bits do not depend on the other rows.

    Args:
        x: bf16 [1..64, K], K % 8 == 0, unit stride along K, 16-byte aligned rows.
        y: bf16 [rows, out], contiguous.
        dependent: weights may load while the kernel before this one still runs.

    Raises:
        KernelError: see `driver.load`.
    """
    device = y.get_device()
    variant = variant_for(x.shape[0])
    k_blocks = -(-x.shape[1] // TILE_K)
    blocks = blocks_for(weights.units // k_blocks, k_blocks, _multiprocessors(device))
    stream = torch.cuda.current_stream(device).cuda_stream
    arguments = _Product(
        **weights.pointers(),
        y=y.data_ptr(),
        partials=workspace(device, stream, blocks * TILE_CHANNELS * variant.rows),
        rows=x.shape[0],
        channels=y.shape[1],
        k_blocks=k_blocks,
        units=weights.units,
        dependent=dependent,
    )
    _product_kernel(variant, device).launch(
        blocks, (describe_rows(x, variant.rows), arguments), stream=stream, dependent=dependent
    )


def decode(weights: Weights, out: torch.Tensor) -> None:
    """Fill `out`, bf16 [N, K] contiguous, with the weights, bit for bit; any GPU since sm_80.

    Raises:
        KernelError: see `driver.load`.
    """
    device = out.get_device()
    arguments = _Decoding(
        **weights.pointers(),
        weights=out.data_ptr(),
        channels=out.shape[0],
        width=out.shape[1],
        k_blocks=-(-out.shape[1] // TILE_K),
        first_record=0,
    )
    load("w12_decode", device, (), DECODE_THREADS, 0).launch(
        weights.units,
        (arguments,),
        stream=torch.cuda.current_stream(device).cuda_stream,
        dependent=False,
    )

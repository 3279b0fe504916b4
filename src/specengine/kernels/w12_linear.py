"""x @ W.T with W in W12 records: plan, launch, and the custom op `specengine::w12_linear`.

The op works under CUDA graphs and torch.compile. On a CPU the same op decodes the records in plain
torch and multiplies, which is the kernel's reference. Format: paper section 4.1; kernel: `w12_gemm.cu`.
"""

import ctypes
import functools
from dataclasses import dataclass

import torch

from specengine.kernels.driver import Kernel, describe_rows, load
from specengine.kernels.errors import KernelError
from specengine.kernels.workspace import workspaces

TILE_CHANNELS, TILE_K, RECORD_BYTES = 128, 64, 12288
MAX_ROWS = 64
THREADS = 320
SHARED_BYTES_ALONE, SHARED_BYTES_PAIRED = 232448, 115712
"""Dynamic shared memory of a block that has a multiprocessor to itself, or shares it with another."""
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the kernel.

    Attributes:
        rows: rows of the tile, x's rows rounded up.
        stages: records in flight; x_stages: tiles of x in flight.
        paired: two blocks fit on a multiprocessor, so the next kernel's weights load early.
    """

    rows: int
    stages: int
    x_stages: int
    paired: bool

    def shared_bytes(self) -> int:
        per_stage = RECORD_BYTES + 16
        return self.stages * per_stage + self.x_stages * self.rows * 128 + TILE_CHANNELS * self.rows * 4

    def defines(self) -> tuple[str, ...]:
        return (
            f"ROWS={self.rows}",
            f"STAGES={self.stages}",
            f"X_STAGES={self.x_stages}",
            f"BLOCKS_PER_SM={2 if self.paired else 1}",
        )


def widest(rows: int, x_stages: int, paired: bool) -> Variant:
    """The variant with the deepest ring that fits."""
    room = SHARED_BYTES_PAIRED if paired else SHARED_BYTES_ALONE
    fixed = Variant(rows, 0, x_stages, paired).shared_bytes()
    return Variant(rows, min(16, (room - fixed) // (RECORD_BYTES + 16)), x_stages, paired)


VARIANTS = (
    widest(8, 6, True),
    widest(16, 4, True),
    widest(24, 3, True),
    widest(32, 3, True),
    widest(48, 4, False),
    widest(64, 4, False),
)


def variant_for(rows: int) -> Variant:
    return next(variant for variant in VARIANTS if variant.rows >= rows)


def blocks_for(tiles: int, k_blocks: int, multiprocessors: int) -> int:
    """Thread blocks that share a product; they fix the order of its sums, so rows must not matter.

    A whole number of blocks for each tile ends all of them together, with one meeting a tile. It is
    taken where it leaves few multiprocessors idle; else records are split evenly.
    """
    if tiles <= multiprocessors:
        even = tiles * min(multiprocessors // tiles, k_blocks)
        if even >= multiprocessors * 0.84:
            return even
    return min(multiprocessors, tiles * k_blocks)


class Arguments(ctypes.Structure):
    """`Arguments` of the kernel's source, field by field."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("records", "scale", "escapes", "escape_offsets", "y", "partials")],
        *[(name, ctypes.c_int) for name in ("rows", "channels", "k_blocks", "units", "dependent")],
    )


@functools.cache
def _kernel(variant: Variant, device: int) -> Kernel:
    return load("w12_gemm", device, variant.defines(), THREADS, variant.shared_bytes())


def launch(
    x: torch.Tensor,
    records: torch.Tensor,
    scale: torch.Tensor,
    escapes: torch.Tensor,
    escape_offsets: torch.Tensor,
    y: torch.Tensor,
    *,
    variant: Variant | None = None,
    blocks: int | None = None,
    dependent: bool = True,
) -> None:
    """Fill y = x @ W.T. x: bf16 [1..64, K], K % 8 == 0; y: bf16 [rows, out], contiguous."""
    rows, k = x.shape
    device = x.device.index
    k_blocks = -(-k // TILE_K)
    units = records.numel() // RECORD_BYTES
    variant = variant or variant_for(rows)
    if blocks is None:
        count = torch.cuda.get_device_properties(device).multi_processor_count
        blocks = blocks_for(units // k_blocks, k_blocks, count)
    stream = torch.cuda.current_stream(x.device).cuda_stream
    arguments = Arguments(
        records=records.data_ptr(),
        scale=scale.data_ptr(),
        escapes=escapes.data_ptr(),
        escape_offsets=escape_offsets.data_ptr(),
        y=y.data_ptr(),
        partials=workspaces(x.device).of_stream(stream).data_ptr(),
        rows=rows,
        channels=y.shape[1],
        k_blocks=k_blocks,
        units=units,
        dependent=int(dependent),
    )
    _kernel(variant, device).launch(
        blocks, (describe_rows(x, variant.rows), arguments), stream=stream, dependent=dependent
    )

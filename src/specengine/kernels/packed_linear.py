"""x @ W.T with W in records: how a product is cut into thread blocks, and the kernels' launches.

Formats: `specengine.weights`, paper sections 4.1 and 4.3; kernels: `packed_gemm.cu` and
`packed_decode.cu`; the ops that users call: `ops.py`.

What bounds a product on an H200 (`benchmarks/weights.py`, docs/weights.md): W12 with few rows reads
as fast as a plain sum on large matrices. A matrix of 5120 x 6144 is over before the exchange of its
parts' sums is amortised: 0.6 us at one row, 1 at 32, 2.4 at 64. W11S waits for integer work, of its
consumers and of those who build its bit planes. Records of 8 bits are bound by their bytes once a
warp of its own asks for rows; smaller ones by decoding and multiplying, 0.22 us a record. Tried
without gain: four consumer warpgroups in place of two, mma.sync in place of wgmma, reading the next
record's words before this one's products, sharing the sum of parts among a tile's blocks.
"""

import ctypes
import functools
from dataclasses import dataclass, replace

import torch

from specengine.kernels.driver import Kernel, describe_rows, load
from specengine.kernels.workspace import workspace
from specengine.weights import Packed

TILE_CHANNELS, TILE_K = 128, 64
DECODE_THREADS = 256
MAX_ROWS = 64
"""Rows of one launch."""
TILE_ROWS = (8, 16, 32, 48, 64)
"""Rows that a launch is compiled for."""
SHARED_BYTES = 227 * 1024
"""Shared memory of a thread block that has a Hopper multiprocessor to itself."""
MOST_STAGES = 16
BYTES_IN_FLIGHT, FEWER_IN_FLIGHT = 60 * 1024, 48 * 1024
"""Asked of the memory by one block at once: enough to keep it busy, little to queue behind. Fewer
where x takes long to come: beyond 16 rows."""
EVEN_SHARE, EVEN_RECORDS = 0.84, 84
"""When whole tiles go to thread blocks: multiprocessors in use, and records of a block."""
LEAD = 1
"""Records by which the first block of a tile ends after each of the others, whose parts it adds."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the kernels read a format.

    Attributes:
        macro: its name in `formats.cuh`.
        read_bytes: bytes of a record that a product reads, at most.
        stride_bytes: from one record to the next; 0 where records vary.
        lossless: it has escapes, and a power of two scales each channel.
    """

    macro: str
    read_bytes: int
    stride_bytes: int
    lossless: bool

    @property
    def stage_bytes(self) -> int:
        """Of the ring; records that end in a list have a bit plane behind them."""
        return self.read_bytes + (0 if self.stride_bytes else 1024)


FORMATS = {
    "w12": Format("W12", 12288, 12288, True),
    "w12n": Format("W12N", 12288, 12288, True),
    "w12n_view": Format("W12_VIEW", 8192, 12288, False),
    "w11s": Format("W11S", 12288, 0, True),
    "e2m5": Format("E2M5", 8192, 8192, False),
    "e2m4": Format("E2M4", 7168, 7168, False),
    "e2m3": Format("E2M3", 6144, 6144, False),
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the product's kernel.

    Attributes:
        format: key of FORMATS.
        rows: rows of the tile: x's rows rounded up.
        stages: records in the ring; x_stages: tiles of x in the ring.
        output: "u16" for BF16, or "float".
        tile_step: every so many-th tile of the weights is multiplied.
        skippable: the launch does nothing where its flags say so.
    """

    format: str
    rows: int
    stages: int
    x_stages: int
    output: str = "u16"
    tile_step: int = 1
    skippable: bool = False

    @property
    def threads(self) -> int:
        """Consumers and producers, correctors of escapes, builders of bit planes."""
        form = FORMATS[self.format]
        correctors = form.lossless * (1 + (self.rows >= 32))
        return 320 + 32 * correctors if form.stride_bytes else 512

    def shared_bytes(self) -> int:
        form = FORMATS[self.format]
        barriers = 24 if form.stride_bytes == 0 else 16
        rings = self.stages * (form.stage_bytes + barriers) + self.x_stages * (self.rows * 128 + 16)
        return rings + (TILE_CHANNELS * self.rows * 4 if form.lossless else 0)

    def in_flight(self) -> int:
        """Records asked for at once."""
        form = FORMATS[self.format]
        few = form.lossless and self.rows > 16
        asked = FEWER_IN_FLIGHT if few else BYTES_IN_FLIGHT
        return min(self.stages, asked // form.read_bytes)

    def defines(self) -> tuple[str, ...]:
        form = FORMATS[self.format]
        return (
            f"FORMAT={form.macro}",
            f"ROWS={self.rows}",
            f"STAGES={self.stages}",
            f"X_STAGES={self.x_stages}",
            f"IN_FLIGHT={self.in_flight()}",
            f"LEAD={LEAD}",
            f"OUTPUT={self.output}",
            f"TILE_STEP={self.tile_step}",
            f"SKIPPABLE={self.skippable:d}",
        )


@functools.cache
def variant_for(name: str, rows: int, output: str = "u16") -> Variant:
    """The narrowest tile that holds `rows` rows, 1 to 64, with the deepest rings that fit.

    x waits for the second-level cache as long as a record for the memory, so both rings are equally
    deep; tiles of 64 rows are so large that two of them give way to one more record.
    """
    tile = next(tile for tile in TILE_ROWS if tile >= rows)
    saved = 2 if tile == MAX_ROWS else 0
    depths = (
        Variant(name, tile, stages, stages - saved, output) for stages in range(MOST_STAGES, 4, -1)
    )
    return next(variant for variant in depths if variant.shared_bytes() <= SHARED_BYTES)


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


def equal_parts(tiles: int, k_blocks: int, blocks: int) -> int:
    """Thread blocks of each tile, where all have as many and long stretches; else 0."""
    parts = blocks // tiles
    return parts if parts > 1 and blocks % tiles == 0 and k_blocks >= 16 * parts else 0


_POINTERS = ("records", "scale", "escapes", "escape_offsets", "record_offsets")


class _Product(ctypes.Structure):
    """`Arguments` of packed_gemm.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "y", "partials", "skip")),
        *(
            (name, ctypes.c_int)
            for name in ("rows", "channels", "k_blocks", "units", "record_bytes", "parts")
        ),
    )


class _Decoding(ctypes.Structure):
    """`Arguments` of packed_decode.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*_POINTERS, "weights")),
        *((name, ctypes.c_int) for name in ("channels", "width", "k_blocks")),
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix in records on a CUDA device; `specengine.weights.Packed` and `LowBit` say the rest.

    Attributes:
        format: key of FORMATS.
        escapes, escape_offsets: of lossless formats.
        record_offsets: of formats whose records vary in size.
        record_bytes: of each record, where those of such a format all have as many; else 0.
    """

    format: str
    records: torch.Tensor
    scale: torch.Tensor
    escapes: torch.Tensor | None = None
    escape_offsets: torch.Tensor | None = None
    record_offsets: torch.Tensor | None = None
    record_bytes: int = 0

    @classmethod
    def of(cls, packed: Packed) -> "Weights":
        """A matrix in a lossless format; reads its offsets."""
        return cls(packed.format, **packed.arrays(), record_bytes=packed.record_bytes())

    def tensors(self) -> dict[str, torch.Tensor]:
        named = {name: getattr(self, name) for name in _POINTERS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def pointers(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in self.tensors().items()}

    def units(self, width: int) -> int:
        """Records of the matrix, for `width` inputs."""
        return self.scale.numel() // TILE_CHANNELS * -(-width // TILE_K)


@functools.cache
def _product_kernel(variant: Variant, device: int) -> Kernel:
    return load("packed_gemm", device, variant.defines(), variant.threads, variant.shared_bytes())


@functools.cache
def multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def multiply(
    x: torch.Tensor,
    weights: Weights,
    y: torch.Tensor,
    *,
    dependent: bool = True,
    tile_step: int = 1,
    skip: torch.Tensor | None = None,
) -> None:
    """Fill y = x @ W.T on a Hopper GPU. A row's bits do not depend on the other rows.

    Args:
        x: bf16 [1..64, K], K % 8 == 0, unit stride along K, 16-byte aligned rows.
        y: bf16 or float32 [rows, out], contiguous.
        dependent: weights may load while the kernel before this one still runs.
        tile_step: fill only every so many-th tile of 128 channels, from the first.
        skip: int32 [rows], written by earlier kernels: leave y alone where none is 0.

    Raises:
        KernelError: see `driver.load`.
    """
    device = y.get_device()
    output = "float" if y.dtype == torch.float32 else "u16"
    variant = variant_for(weights.format, x.shape[0], output)
    variant = replace(variant, tile_step=tile_step, skippable=skip is not None)
    k_blocks = -(-x.shape[1] // TILE_K)
    tiles = -(-weights.units(x.shape[1]) // (k_blocks * tile_step))
    blocks = blocks_for(tiles, k_blocks, multiprocessors(device))
    stream = torch.cuda.current_stream(device).cuda_stream
    arguments = _Product(
        **weights.pointers(),
        y=y.data_ptr(),
        partials=workspace(device, stream, blocks * TILE_CHANNELS * variant.rows),
        skip=None if skip is None else skip.data_ptr(),
        rows=x.shape[0],
        channels=y.shape[1],
        k_blocks=k_blocks,
        units=tiles * k_blocks,
        record_bytes=weights.record_bytes,
        parts=equal_parts(tiles, k_blocks, blocks),
    )
    kernel = _product_kernel(variant, device)
    with torch.cuda.device(device):
        tile = describe_rows(x, variant.rows)
        kernel.launch(blocks, (tile, arguments), stream=stream, dependent=dependent)


def prepare(name: str, device: int) -> None:
    """Build and load all that products of a format need, so that a graph may be captured next.

    Args:
        name: key of FORMATS.
        device: index of a Hopper GPU.

    Raises:
        KernelError: see `driver.load`, or a graph is being captured.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    workspace(device, stream, 0)
    for rows in TILE_ROWS:
        _product_kernel(variant_for(name, rows), device)


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
    )
    macro = f"FORMAT={FORMATS[weights.format].macro}"
    kernel = load("packed_decode", device, (macro,), DECODE_THREADS, 0)
    stream = torch.cuda.current_stream(device).cuda_stream
    with torch.cuda.device(device):
        kernel.launch(weights.units(out.shape[1]), (arguments,), stream=stream, dependent=False)

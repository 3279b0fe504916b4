"""A packed matrix: the very arrays that kernels read and shards store."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specengine.weights.layout import BLOCK, TILE

UNIT = 16
"""Bytes that records of variable size are padded to, so that bulk copies can move them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [N, K] in a lossless format; T = ceil(N / 128) tiles, R = T * ceil(K / 64) records.

    Attributes:
        format: `w12`, `w12n` or `w11s`.
        shape: (N, K), or that of a stretch of whole tiles.
        records: uint8 [bytes], by tile, then by block.
        scale: float32 [T * 128], 2 ** (top of the window - 127); 0 for channels of zeros.
        escapes: int32 [n, 2], by record, channel, input; two 16-bit halves each, low first:
            (channel in tile, input), (true BF16 pattern, pattern that the record decodes to).
        escape_offsets: int32 [R + 1], where the entries of each record start.
        record_offsets: int32 [R + 1] in 16-byte units where records vary in size, else None.
    """

    format: str
    shape: tuple[int, int]
    records: torch.Tensor
    scale: torch.Tensor
    escapes: torch.Tensor
    escape_offsets: torch.Tensor
    record_offsets: torch.Tensor | None = None

    @property
    def tiles(self) -> int:
        return -(-self.shape[0] // TILE)

    @property
    def blocks(self) -> int:
        return -(-self.shape[1] // BLOCK)

    def arrays(self) -> dict[str, torch.Tensor]:
        """Name and tensor of each stored array, in stored order."""
        named = {
            "records": self.records,
            "scale": self.scale,
            "record_offsets": self.record_offsets,
            "escape_offsets": self.escape_offsets,
            "escapes": self.escapes,
        }
        return {name: array for name, array in named.items() if array is not None}

    def record_bytes(self) -> int:
        """Bytes of each record where those of a variable size all have as many, else 0."""
        if self.record_offsets is None:
            return 0
        sizes = self.record_offsets.diff()
        return UNIT * int(sizes[0]) if bool((sizes == sizes[0]).all()) else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def to(self, device: torch.device | str) -> "Packed":
        """The same matrix on another device."""
        moved = {name: array.to(device) for name, array in self.arrays().items()}
        return Packed(self.format, self.shape, **moved)

    def stretch(self, first: int, count: int) -> "Packed":
        """Tiles [first, first + count), as views where that is possible."""
        start, end = first * self.blocks, (first + count) * self.blocks
        size = self.records.numel() // (self.tiles * self.blocks)
        record_offsets = None
        low, high = start * size, end * size
        if self.record_offsets is not None:
            record_offsets = self.record_offsets[start : end + 1]
            low, high = (UNIT * int(record_offsets[i]) for i in (0, -1))
            record_offsets = record_offsets - record_offsets[0]
        offsets = self.escape_offsets[start : end + 1]
        channels = min(self.shape[0], (first + count) * TILE) - first * TILE
        return Packed(
            self.format,
            (channels, self.shape[1]),
            self.records[low:high],
            self.scale[first * TILE : (first + count) * TILE],
            self.escapes[int(offsets[0]) : int(offsets[-1])],
            offsets - offsets[0],
            record_offsets,
        )


def join(parts: Sequence[Packed], records: torch.Tensor | None = None) -> Packed:
    """One matrix from consecutive stretches; only the last may end inside a tile.

    Args:
        records: all records, where the caller has laid them end to end already.
    """
    if len(parts) == 1 and records is None:
        return parts[0]
    first = parts[0]
    return Packed(
        first.format,
        (sum(part.shape[0] for part in parts), first.shape[1]),
        torch.cat([part.records for part in parts]) if records is None else records,
        torch.cat([part.scale for part in parts]),
        torch.cat([part.escapes for part in parts]),
        join_offsets([part.escape_offsets for part in parts]),
        None
        if first.record_offsets is None
        else join_offsets(
            [part.record_offsets for part in parts if part.record_offsets is not None]
        ),
    )


def join_offsets(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Offsets of concatenated lists, from the offsets of each."""
    return offsets_of(torch.cat([part.diff() for part in parts]))


def offsets_of(counts: torch.Tensor) -> torch.Tensor:
    """int32 [n + 1]: 0, then running sums."""
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))

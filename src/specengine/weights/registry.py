"""Lossless formats by name; whole matrices, a stretch of tiles at a time."""

from typing import Protocol

import torch

from specengine.errors import OptionError
from specengine.weights.layout import BLOCK, TILE
from specengine.weights.packed import Packed, join
from specengine.weights.w11s import SPARSE_TOP
from specengine.weights.w12 import NESTED, UNNESTED

STRETCH = 1 << 22
"""Weights coded at once: with fewer, threads take more turns in the interpreter; more need more
memory."""
WIDEST = 1 << 16
"""Inputs that an escape's 16-bit column can name."""


class Format(Protocol):
    """A lossless format: `decode(encode(bits))` is `bits`, whatever they are."""

    name: str
    least_record: int
    largest_record: int

    def encode(self, bits: torch.Tensor, room: torch.Tensor | None = None) -> Packed: ...

    def decode(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor: ...


FORMATS: dict[str, Format] = {form.name: form for form in (UNNESTED, NESTED, SPARSE_TOP)}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        OptionError: there is none.
    """
    if name not in FORMATS:
        raise OptionError(
            f"'{name}' is not a weight format", where="format", fix=f"use {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def tiles_at_once(width: int) -> int:
    """Tiles of a stretch of a matrix with `width` inputs."""
    return max(1, STRETCH // (TILE * width))


def encode(matrix: torch.Tensor, name: str = "w12") -> Packed:
    """Pack a bfloat16 matrix [N, K], N >= 1, 1 <= K <= 65536.

    Raises:
        OptionError: unknown format, or a tensor that no format can take.
    """
    form = format_named(name)
    fits = matrix.dim() == 2 and matrix.numel() > 0 and matrix.shape[1] <= WIDEST
    if matrix.dtype != torch.bfloat16 or not fits:
        raise OptionError(
            f"a {matrix.dtype} tensor of shape {tuple(matrix.shape)} cannot be packed",
            where="matrix",
            fix=f"give a bfloat16 matrix with weights, of 1 to {WIDEST} inputs",
        )
    bits = matrix.detach().contiguous().view(torch.int16)
    step, size = tiles_at_once(bits.shape[1]), -(-bits.shape[1] // BLOCK) * form.least_record
    tiles = -(-bits.shape[0] // TILE)
    whole = bits.new_empty(tiles * size, dtype=torch.uint8)
    parts, rooms = [], []
    for tile in range(0, tiles, step):
        rooms.append(whole[tile * size : (tile + step) * size])
        parts.append(form.encode(bits[tile * TILE : (tile + step) * TILE], rooms[-1]))
    fit = all(
        part.records.data_ptr() == room.data_ptr() and part.records.numel() == room.numel()
        for part, room in zip(parts, rooms, strict=True)
    )
    return join(parts, whole if fit else None)


def decode(packed: Packed) -> torch.Tensor:
    """The bfloat16 matrix [N, K], bit for bit."""
    form, (rows, width) = format_named(packed.format), packed.shape
    bits = packed.records.new_empty((packed.tiles * TILE, packed.blocks * BLOCK), dtype=torch.int16)
    step = tiles_at_once(width)
    for tile in range(0, packed.tiles, step):
        part = packed.stretch(tile, min(step, packed.tiles - tile))
        form.decode(part, bits[tile * TILE : (tile + part.tiles) * TILE])
    return bits[:rows, :width].contiguous().view(torch.bfloat16)

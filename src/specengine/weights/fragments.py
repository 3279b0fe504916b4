"""From a matrix to the registers of tensor-core threads and into records, and back. Plain torch.

Inside a tile of 128 channels and a block of 64 inputs, register p = 4 * step + a (step and a from 0
to 3) of thread t (0..127) of half h holds the weights of

    channel = 64 * h + 16 * (t // 32) + (t % 32) // 4 + 8 * (a % 2)
    input   = 16 * step + 2 * (t % 4) + 8 * (a // 2) + lane

which is how `wgmma` and, warp by warp, `mma.m16n8k16` expect the A operand. The functions work on
any device; bits pass through unchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from specengine.weights.layout import BLOCK, REGISTERS, TILE, Layout, planes
from specengine.weights.native import scratch, space_of
from specengine.weights.runs import apply, extracting, placing, rows_of_words

RECORDS_AT_ONCE = 160
"""On a CPU: fewer fit the caches better, more let threads wait less for the interpreter."""
_AXES = tuple(range(8))


def pack_lanes(lanes: torch.Tensor, layout: Layout, records: torch.Tensor) -> None:
    """Write 16-bit lanes into records.

    Args:
        lanes: int16 [C, K], contiguous, C a multiple of 128 and K of 64.
        records: uint8 [R, record_bytes], by tile, then by block; may lie apart, at multiples of 4
            bytes.
    """
    work = _Work(lanes, layout, records)
    for part in work.parts():
        part.ordered[...] = work.space.moveaxis(part.pairs, (6, 7, 3, 0, 5, 1, 2, 4), _AXES)
        apply(placing(layout), work.space, part.rows, part.field)
        for word, stored in _words(part, layout):
            stored[...] = word


def unpack_lanes(
    records: torch.Tensor,
    layout: Layout,
    tiles: int,
    base: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The inverse of `pack_lanes`; bits that no piece names are 0.

    Args:
        base: int16 [128 * tiles], is added to each channel's lanes.
        out: int16 [128 * tiles, K], contiguous, to be filled and returned.

    Returns:
        int16 [128 * tiles, K].
    """
    width = records.shape[0] // tiles * BLOCK
    shape, device = (tiles * TILE, width), records.device
    lanes = torch.empty(shape, dtype=torch.int16, device=device) if out is None else out
    work = _Work(lanes, layout, records)
    for part in work.parts():
        for word, stored in _words(part, layout):
            word[...] = stored
        apply(extracting(layout), work.space, part.rows, part.field)
        part.pairs[...] = work.space.moveaxis(part.ordered, (3, 5, 6, 2, 7, 4, 0, 1), _AXES)
        if base is not None:
            _, added = space_of(base[part.channels, None])
            part.lanes[...] += added
    return lanes


@dataclass(frozen=True, slots=True)
class _Part:
    """n consecutive records of t tiles, as numpy's or torch's arrays.

    Attributes:
        channels: of the tiles.
        lanes: int16 [128 * t, k].
        pairs: the same as complex128 [t, 2, 4, 2, 8, n / t, 4, 2]: four threads own neighbouring
            32-bit pairs, 16 bytes that stay together.
        ordered: complex128 [4, 2, 2, t, n / t, 2, 4, 8], the registers.
        rows: int32 [16 + words, n, 2, 128], the same and words behind them; see `runs`.
        field: int32 [16, n, 2, 128].
        stored: int32 [n, 256 * words].
    """

    channels: slice
    lanes: Any
    pairs: Any
    ordered: Any
    rows: Any
    field: Any
    stored: Any


class _Work:
    """Lanes and records, cut into parts that share one scratch memory."""

    def __init__(self, lanes: torch.Tensor, layout: Layout, records: torch.Tensor) -> None:
        tiles, blocks = lanes.shape[0] // TILE, lanes.shape[1] // BLOCK
        self._tiles, self._blocks = tiles, blocks
        # A part is some blocks of one tile, or some whole tiles.
        most = RECORDS_AT_ONCE if lanes.device.type == "cpu" else tiles * blocks
        self._step = (max(1, min(tiles, most // blocks)), min(blocks, most))
        pairs = lanes.view(torch.complex128).view(tiles, 2, 4, 2, 8, blocks, 4, 2)
        count = self._step[0] * self._step[1]
        most_rows = max(REGISTERS, *(row + 1 for row in rows_of_words(layout)))
        shape = (most_rows, count, 2, 128)
        if lanes.device.type == "cpu":
            rows, field = (
                torch.from_numpy(scratch(use, shape, np.int32)) for use in ("rows", "field")
            )
        else:
            rows, field = (lanes.new_empty(shape, dtype=torch.int32) for _ in range(2))
        ordered = rows[:REGISTERS].view(torch.complex128).view(4, 2, 2, count, 2, 4, 8)
        self.space, *self._arrays = space_of(
            lanes, pairs, ordered, rows, field, records.view(torch.int32)
        )

    def parts(self) -> Iterator[_Part]:
        lanes, pairs, ordered, rows, field, stored = self._arrays
        for tile in range(0, self._tiles, self._step[0]):
            tiles = min(self._step[0], self._tiles - tile)
            channels = slice(TILE * tile, TILE * (tile + tiles))
            for first in range(0, self._blocks, self._step[1]):
                blocks = min(self._step[1], self._blocks - first)
                n, record = tiles * blocks, tile * self._blocks + first
                yield _Part(
                    channels,
                    lanes[channels, BLOCK * first : BLOCK * (first + blocks)],
                    pairs[tile : tile + tiles, :, :, :, :, first : first + blocks],
                    ordered[:, :, :, :n].reshape(4, 2, 2, tiles, blocks, 2, 4, 8),
                    rows[:, :n],
                    field[:, :n],
                    stored[record : record + n],
                )


def _words(part: _Part, layout: Layout) -> Iterator[tuple[Any, Any]]:
    """Each word of all threads where it is worked on and where it is stored, int32 [n, 2, 128].

    One at a time: numpy copies long strides faster than short rows.
    """
    rows = rows_of_words(layout)
    for first, width in layout.sections:
        section = part.stored[:, 256 * first : 256 * (first + width)].reshape(-1, 2, 128 * width)
        for word, size in planes(first, width):
            start = 128 * (word - first)
            plane = section[:, :, start : start + 128 * size].reshape(-1, 2, 128, size)
            for index in range(size):
                yield part.rows[rows[word + index]], plane[..., index]


def coordinates(position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Channel and input inside a record of a lane, from 32 * (128 * half + thread) + 16 * lane +
    register."""
    register, lane = position % 16, position // 16 % 2
    thread, half = position // 32 % 128, position // 4096
    a, step = register % 4, register // 4
    channel = 64 * half + 16 * (thread // 32) + thread % 32 // 4 + 8 * (a % 2)
    return channel, 16 * step + 2 * (thread % 4) + 8 * (a // 2) + lane


@cache
def places_by_position() -> torch.Tensor:
    """int64 [8192]: 64 * channel + input of each position that `coordinates` takes."""
    channel, column = coordinates(torch.arange(TILE * BLOCK))
    return channel * BLOCK + column


@cache
def positions_by_place() -> torch.Tensor:
    """The inverse of `places_by_position`."""
    return torch.argsort(places_by_position())

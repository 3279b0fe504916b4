"""Whether arrays are a packed matrix at all, before a kernel or decoder trusts their offsets."""

from dataclasses import replace

import torch

from specengine.errors import CheckpointError
from specengine.weights.coding import escape_places
from specengine.weights.layout import BLOCK, TILE
from specengine.weights.packed import UNIT, Packed
from specengine.weights.registry import FORMATS, WIDEST
from specengine.weights.w11s import (
    DENSE_BYTES,
    LARGEST_RECORD,
    LIST_BLOCKS,
    listed_counts,
    record_units,
)
from specengine.weights.window import HIGHEST_TOP, LOWEST_TOP, tops_of

_FIX = "encode the tensor again"
_DTYPES = {
    "records": torch.uint8,
    "scale": torch.float32,
    "escapes": torch.int32,
    "escape_offsets": torch.int32,
    "record_offsets": torch.int32,
}


def check(packed: Packed, where: str) -> None:
    """Check sizes, ranges and orders of a matrix or a stretch of it.

    Raises:
        CheckpointError: names the array at fault.
    """
    check_index(packed, where)
    check_lists(packed, where)


def check_index(packed: Packed, where: str) -> None:
    """Check everything that can be checked without reading records.

    Raises:
        CheckpointError: names the array at fault.
    """
    _require(packed.format in FORMATS, where, f"has the unknown format '{packed.format}'")
    rows, width = packed.shape
    _require(rows > 0 and 0 < width <= WIDEST, where, f"has the shape {packed.shape}")
    for name, array in packed.arrays().items():
        _require(array.dtype == _DTYPES[name], where, f"{name} has the dtype {array.dtype}")
    count = packed.tiles * packed.blocks
    _check_offsets(packed.escape_offsets, count, where, "escape_offsets")
    _check_records(packed, count, where)
    _check_scale(packed, where)
    _check_escapes(packed, where)


def check_lists(packed: Packed, where: str) -> None:
    """Check that the lists inside w11s records are as long as the records have room for.

    Raises:
        CheckpointError: they are not.
    """
    if packed.record_offsets is not None:
        listed = listed_counts(packed).sum(1, dtype=torch.int64)
        _require(
            torch.equal(record_units(listed), packed.record_offsets.diff().long()),
            where,
            "a record's counts miss its size",
        )


def decode_checked(packed: Packed, where: str) -> torch.Tensor:
    """Decode, and check on the way that records hold what their escapes say they hold.

    Returns:
        BF16 patterns, int16 [C, K].

    Raises:
        CheckpointError: they do not; products would be corrected by the wrong amount.
    """
    bare = replace(
        packed,
        escapes=packed.escapes[:0],
        escape_offsets=torch.zeros_like(packed.escape_offsets),
    )
    bits = FORMATS[packed.format].decode(bare)
    place = escape_places(packed.escapes, packed.escape_offsets, packed.blocks)
    held = packed.escapes[:, 1].bitwise_right_shift(16).to(torch.int16)
    _require(
        torch.equal(bits[place], held),
        where,
        "escapes state other substitutes than the records hold",
    )
    bits[place] = packed.escapes[:, 1].to(torch.int16)
    return bits


def _check_offsets(offsets: torch.Tensor, count: int, where: str, name: str) -> None:
    _require(offsets.shape == (count + 1,), where, f"{name} has {offsets.numel()} entries")
    _require(int(offsets[0]) == 0, where, f"{name} does not begin with 0")
    _require(bool((offsets.diff() >= 0).all()), where, f"{name} is not ascending")


def _check_records(packed: Packed, count: int, where: str) -> None:
    size = packed.records.numel()
    if packed.format != "w11s":
        expected = count * FORMATS[packed.format].largest_record
        _require(packed.record_offsets is None, where, "record_offsets belong to w11s alone")
        _require(size == expected, where, f"records has {size} bytes, not {expected}")
        return
    _require(packed.record_offsets is not None, where, "record_offsets is missing")
    assert packed.record_offsets is not None
    _check_offsets(packed.record_offsets, count, where, "record_offsets")
    end = UNIT * int(packed.record_offsets[-1])
    _require(size == end, where, f"records has {size} bytes, record_offsets end at {end}")
    sizes = packed.record_offsets.diff() * UNIT
    least = DENSE_BYTES + LIST_BLOCKS
    _require(bool((sizes >= least).all()), where, "a record is shorter than its dense part")
    _require(bool((sizes <= LARGEST_RECORD).all()), where, "a record is too long")


def _check_scale(packed: Packed, where: str) -> None:
    scale, rows = packed.scale, packed.shape[0]
    _require(scale.shape == (packed.tiles * TILE,), where, f"scale has {scale.numel()} entries")
    tops = tops_of(scale)
    exact = scale.view(torch.int32).bitwise_and(~(0xFF << 23)) == 0
    inside = (tops == 0) | ((tops >= LOWEST_TOP) & (tops <= HIGHEST_TOP))
    _require(bool((exact & inside).all()), where, "scale holds a number that is no window's")
    _require(not bool(scale[rows:].any()), where, "scale is not 0 in the padding")


def _check_escapes(packed: Packed, where: str) -> None:
    escapes, blocks = packed.escapes, packed.blocks
    _require(escapes.dim() == 2 and escapes.shape[1] == 2, where, "escapes is not a list of pairs")
    total = int(packed.escape_offsets[-1])
    _require(
        total == escapes.shape[0], where, f"escapes has {escapes.shape[0]} entries, not {total}"
    )
    counts = packed.escape_offsets.diff().long()
    record = torch.repeat_interleave(torch.arange(counts.shape[0], device=escapes.device), counts)
    channel = escapes[:, 0].long().bitwise_and(0xFFFF)
    column = escapes[:, 0].long().bitwise_right_shift(16).bitwise_and(0xFFFF)
    _require(
        bool((channel < TILE).all() & (record // blocks * TILE + channel < packed.shape[0]).all()),
        where,
        "an escape names a channel outside the matrix",
    )
    _require(
        bool((column < packed.shape[1]).all() & (column // BLOCK == record % blocks).all()),
        where,
        "an escape names an input outside its record",
    )
    place = (record << 32) + (channel << 16) + column
    _require(bool((place.diff() > 0).all()), where, "escapes are not in order")


def _require(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise CheckpointError(what, where=where, fix=_FIX)

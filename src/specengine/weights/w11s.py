"""W11s: 11 bits in place and a sparse list for the twelfth, beyond the paper.

The top bit of a weight's 4-bit exponent offset says whether it lies in the upper or the lower half
of its channel's window. Windows are chosen so that about 99% lie in the upper half; the bit is left
out, and each record lists the few weights where it is 0. A kernel rebuilds the bit as a plane of 1
KB in shared memory and then decodes without branches.

A record is 11 264 dense bytes, 32 counts, the listed positions, zeros up to whole memory lines:
bulk copies that begin or end inside a line take 4% longer, the zeros half a percent. It has 11 520
bytes at least. With the usual lists of 115 weights all records of a matrix are as long, and a
kernel need not wait for their offsets.
A position is that of the weight's bit in the plane: word 128 * half + thread, bit 16 * lane +
register; each count and 8-bit position belong to a block of 8 words. A record never exceeds 12 288
bytes: weights that do not fit the list become escapes.
"""

import torch

from specengine.weights.coding import (
    SIGN,
    UPPER,
    Escaped,
    base_of,
    clear_zeros,
    escape,
    escape_entries,
    pack_coded,
    restore_escapes,
)
from specengine.weights.fragments import (
    coordinates,
    places_by_position,
    positions_by_place,
    unpack_lanes,
)
from specengine.weights.layout import BLOCK, TILE, X
from specengine.weights.native import cut_out, in_order, paste_in, put_octets, space_of, subtract_at
from specengine.weights.packed import UNIT, Packed, offsets_of
from specengine.weights.window import choose_windows, scales, tops_of

DENSE_BYTES = X.record_bytes
LARGEST_RECORD = 12288
LIST_BLOCKS = 32
"""Blocks of 256 positions."""
MOST_LISTED = LARGEST_RECORD - DENSE_BYTES - LIST_BLOCKS
MOST_IN_BLOCK = 255
LINE, LEAST_LINES = 128, 90
"""Bytes of a memory line, and lines of a record."""
_HEAD_BYTES = DENSE_BYTES + LIST_BLOCKS


class W11s:
    """Encoder and decoder; plain torch, any device."""

    name = "w11s"
    least_record, largest_record = LEAST_LINES * LINE, LARGEST_RECORD

    def encode(self, bits: torch.Tensor, room: torch.Tensor | None = None) -> Packed:
        """Pack int16 [C, K], BF16 patterns of channels that begin with a tile.

        Args:
            room: uint8, for records of the least size; taken if all are so small.
        """
        windows = choose_windows(bits, listed_bits=8)
        base = base_of(windows.tops)
        escaped = escape(bits, windows.outside, base, lowest=UPPER)
        listed = _listed(windows.lower, bits.shape[1])
        in_blocks = _in_blocks(listed, bits.shape)
        if _overfull(in_blocks):
            listed, spilled = _fit(listed)
            in_blocks = _in_blocks(listed, bits.shape)
            escaped = _spill(bits, escaped, spilled)
        escapes, escape_counts = escape_entries(bits, base, escaped)
        rows = _rows(bits, in_blocks.shape[0], room)
        pack_coded(bits, base, escaped, UPPER, X, rows[:, :DENSE_BYTES])
        records, offsets = _assemble(rows, listed, in_blocks)
        return Packed(
            self.name,
            (bits.shape[0], bits.shape[1]),
            records,
            scales(windows.tops),
            escapes,
            offsets_of(escape_counts),
            offsets,
        )

    def decode(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """BF16 patterns, int16 [C, K], in `out`, whole records of them, where that is given."""
        assert packed.record_offsets is not None
        start, even = UNIT * packed.record_offsets[:-1].long(), packed.record_bytes()
        if even:
            heads = packed.records.view(-1, even)[:, :_HEAD_BYTES]
        else:
            heads = cut_out(packed.records, start, _HEAD_BYTES)
        tops = tops_of(packed.scale)
        # Every top bit is set here and taken back below where it is listed.
        base = base_of(tops).add_(UPPER)
        bits = unpack_lanes(heads[:, :DENSE_BYTES], X, packed.tiles, base, out)
        clear_zeros(bits, tops)
        _lower(bits, packed.records, start, heads[:, DENSE_BYTES:])
        restore_escapes(bits, packed.escapes, packed.escape_offsets)
        return bits[: packed.shape[0], : packed.shape[1]]


def listed_counts(packed: Packed) -> torch.Tensor:
    """uint8 [R, 32]: listed weights in each block of each record."""
    assert packed.record_offsets is not None
    start = UNIT * packed.record_offsets[:-1].long() + DENSE_BYTES
    span = torch.arange(LIST_BLOCKS, device=start.device)
    return packed.records[start[:, None] + span]


def record_units(listed: torch.Tensor) -> torch.Tensor:
    """Sizes of records, in units, by the number of weights that they list."""
    lines = (_HEAD_BYTES + listed + LINE - 1) // LINE
    return lines.clamp_(min=LEAST_LINES) * (LINE // UNIT)


def _listed(lower: torch.Tensor, width: int) -> torch.Tensor:
    """Sorted int32 positions, 8192 * record + position, of weights whose top bit is 0.

    Args:
        lower: their places in the flattened matrix of `width` inputs.
    """
    lower, by_place = lower.int(), positions_by_place().int().to(lower.device)
    _, places, by_place = space_of(lower, by_place)
    channel = places // width
    column = places - channel * width
    record = (channel >> 7) * -(-width // BLOCK) + (column >> 6)
    place = (channel & TILE - 1) << 6 | column & BLOCK - 1
    return in_order(torch.as_tensor(record << 13 | by_place[place]))


def _in_blocks(listed: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """int64 [R, 32]: how many of these positions are in each block of each record of [C, K]."""
    blocks = -(-shape[0] // TILE) * -(-shape[1] // BLOCK) * LIST_BLOCKS
    return torch.bincount(listed >> 8, minlength=blocks).view(-1, LIST_BLOCKS)


def _overfull(in_blocks: torch.Tensor) -> bool:
    """Whether any list is too small for its weights."""
    return bool((in_blocks > MOST_IN_BLOCK).any() or (in_blocks.sum(1) > MOST_LISTED).any())


def _fit(listed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split positions into those that the records can list and those that must become escapes."""
    in_block = _first(listed, 8, MOST_IN_BLOCK)
    kept = listed[in_block]
    in_record = _first(kept, 13, MOST_LISTED)
    return kept[in_record], torch.cat((listed[~in_block], kept[~in_record]))


def _first(listed: torch.Tensor, size: int, most: int) -> torch.Tensor:
    """bool: whether a sorted position is among the first `most` of its 2 ** size positions."""
    group = listed >> size
    rank = torch.arange(group.shape[0], device=group.device) - torch.searchsorted(group, group)
    return rank < most


def _spill(bits: torch.Tensor, escaped: Escaped, listed: torch.Tensor) -> Escaped:
    """Let the lowest code of the upper half stand in for weights that no list has room for."""
    blocks = -(-bits.shape[1] // BLOCK)
    listed = listed.long()
    record = listed // 8192
    channel, column = coordinates(listed % 8192)
    channel = channel + record // blocks * TILE
    column = column + record % blocks * BLOCK
    lanes = bits[channel, column].bitwise_and_(SIGN).bitwise_or_(UPPER)
    return escaped.append(channel * bits.shape[1] + column, lanes)


def _rows(bits: torch.Tensor, count: int, room: torch.Tensor | None) -> torch.Tensor:
    """Memory for records of the least size, uint8 [R, bytes]."""
    shape = (count, LEAST_LINES * LINE)
    return bits.new_empty(shape, dtype=torch.uint8) if room is None else room.view(shape)


def _assemble(
    rows: torch.Tensor, listed: torch.Tensor, in_blocks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of variable size: uint8 [bytes] and int32 [R + 1] offsets in units.

    Args:
        rows: uint8 [R, bytes], records of the least size with their dense bytes; may be taken.
    """
    rows[:, DENSE_BYTES:_HEAD_BYTES] = in_blocks
    in_records = in_blocks.sum(1)
    offsets = offsets_of(record_units(in_records))
    start, size = UNIT * offsets[:-1].long(), UNIT * int(offsets[-1])
    if size == rows.numel():
        rows[:, _HEAD_BYTES:] = 0
        records = rows.view(-1)
    else:
        records = rows.new_zeros(size)
        paste_in(records, start, rows[:, :_HEAD_BYTES])
    put_octets(records, _list_places(start, in_records), listed)
    return records, offsets


def _list_places(start: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Where the list bytes of records lie, int64 [sum of counts]."""
    before = counts.cumsum(0) - counts
    first = start + _HEAD_BYTES - before
    places = torch.repeat_interleave(first, counts)
    return places.add_(torch.arange(places.shape[0], device=start.device))


def _lower(
    bits: torch.Tensor, records: torch.Tensor, start: torch.Tensor, in_blocks: torch.Tensor
) -> None:
    """Take the top bit from listed weights of int16 [C, K], whose records begin at `start`."""
    width = bits.shape[1]
    blocks, record = width // BLOCK, torch.arange(start.shape[0], device=records.device)
    place = places_by_position().to(bits.device)
    place = (place >> 6) * width + (place & BLOCK - 1)
    # Each bit of a position moves the place by itself, so its list's can be added first.
    first = record // blocks * (TILE * width) + record % blocks * BLOCK
    in_list = torch.repeat_interleave(
        (first[:, None] + place[:: MOST_IN_BLOCK + 1]).flatten(), in_blocks.flatten().long()
    )
    in_list += place[records[_list_places(start, in_blocks.sum(1))].long()]
    subtract_at(bits, in_list, UPPER)


SPARSE_TOP = W11s()

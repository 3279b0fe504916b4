"""W11s: 11 bits in place and a sparse list for the twelfth, beyond the paper.

The top bit of a weight's 4-bit exponent offset says whether it lies in the upper or the lower half
of its channel's window. Windows are chosen so that about 99% lie in the upper half; the bit is left
out, and each record lists the few weights where it is 0. A kernel rebuilds the bit as a plane of 1
KB in shared memory and then decodes without branches.

A record is 11 264 dense bytes, 32 counts, the listed positions, zeros up to 16 bytes. A position is
that of the weight's bit in the plane: word 128 * half + thread, bit 16 * lane + register; each
count and 8-bit position belong to a block of 8 words. A record never exceeds 12 288 bytes: weights
that do not fit the list become escapes.
"""

import torch

from specengine.weights.coding import (
    SIGN,
    UPPER,
    Escaped,
    code,
    escape_entries,
    pad,
    restore_escapes,
    uncode,
)
from specengine.weights.fragments import (
    coordinates,
    extract,
    from_registers,
    place,
    read_records,
    to_registers,
    write_records,
)
from specengine.weights.layout import BLOCK, REGISTERS, TILE, X
from specengine.weights.packed import UNIT, Packed, offsets_of
from specengine.weights.window import choose_windows, scales, tops_of

DENSE_BYTES = X.record_bytes
LARGEST_RECORD = 12288
LIST_BLOCKS = 32
"""Blocks of 256 positions."""
MOST_LISTED = LARGEST_RECORD - DENSE_BYTES - LIST_BLOCKS
MOST_IN_BLOCK = 255
_HEAD_UNITS = (DENSE_BYTES + LIST_BLOCKS) // UNIT
_TOP_BITS = 0x04000400


class W11s:
    """Encoder and decoder; plain torch, any device."""

    name = "w11s"
    largest_record = LARGEST_RECORD

    def encode(self, bits: torch.Tensor) -> Packed:
        """Pack int16 [C, K], BF16 patterns of channels that begin with a tile."""
        windows = choose_windows(bits, listed_bits=8)
        lanes, escaped = code(bits, windows.tops, windows.outside, lowest=UPPER)
        registers = to_registers(pad(lanes, UPPER))
        listed = _listed(registers)
        if _overfull(listed, registers.shape[1]):
            listed, spilled = _fit(listed)
            escaped = _spill(lanes, escaped, spilled)
            registers = to_registers(pad(lanes, UPPER))
        escapes, escape_counts = escape_entries(bits, lanes, windows.tops, escaped)
        records, offsets = _assemble(place(registers, X), listed)
        return Packed(
            self.name,
            (bits.shape[0], bits.shape[1]),
            records,
            scales(windows.tops),
            escapes,
            offsets_of(escape_counts),
            offsets,
        )

    def decode(self, packed: Packed) -> torch.Tensor:
        """BF16 patterns, int16 [C, K]."""
        registers = self._registers(packed)
        bits = uncode(from_registers(registers, packed.tiles), tops_of(packed.scale))
        restore_escapes(bits, packed.escapes, packed.escape_offsets)
        return bits[: packed.shape[0], : packed.shape[1]]

    def _registers(self, packed: Packed) -> torch.Tensor:
        assert packed.record_offsets is not None
        count = packed.record_offsets.shape[0] - 1
        units = packed.records.view(torch.complex128)
        start = packed.record_offsets[:-1].long()
        span = torch.arange(_HEAD_UNITS, device=start.device)
        heads = units[start[:, None] + span].view(torch.uint8).view(count, -1)
        registers = extract(read_records(heads[:, :DENSE_BYTES], X), X)
        plane = _plane(packed.records, start, heads[:, DENSE_BYTES:]).view_as(registers[0])
        for index in range(REGISTERS):
            shift = 10 - index
            moved = plane << shift if shift >= 0 else plane >> -shift
            registers[index].bitwise_or_(moved.bitwise_and_(_TOP_BITS))
        return registers


def listed_counts(packed: Packed) -> torch.Tensor:
    """uint8 [R, 32]: listed weights in each block of each record."""
    assert packed.record_offsets is not None
    start = UNIT * packed.record_offsets[:-1].long() + DENSE_BYTES
    span = torch.arange(LIST_BLOCKS, device=start.device)
    return packed.records[start[:, None] + span]


def _listed(registers: torch.Tensor) -> torch.Tensor:
    """Sorted int64 positions, 8192 * record + position, of lanes whose top bit is 0."""
    ones = torch.zeros_like(registers[0])
    for index in range(REGISTERS):
        field = registers[index].bitwise_and(_TOP_BITS)
        ones |= field.bitwise_right_shift_(10).bitwise_left_shift_(index)
    zeros = ones.bitwise_not_()
    octets = zeros.flatten().view(torch.uint8)
    occupied = octets.nonzero().squeeze(1)
    powers = 1 << torch.arange(8, dtype=torch.uint8, device=octets.device)
    octet, bit = octets[occupied][:, None].bitwise_and(powers).nonzero(as_tuple=True)
    return occupied[octet] * 8 + bit


def _overfull(listed: torch.Tensor, records: int) -> bool:
    """Whether any list is too small for its weights."""
    in_blocks = torch.bincount(listed >> 8, minlength=records * LIST_BLOCKS).view(records, -1)
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


def _spill(lanes: torch.Tensor, escaped: Escaped, listed: torch.Tensor) -> Escaped:
    """Let the lowest code of the upper half stand in for weights that no list has room for."""
    blocks = -(-lanes.shape[1] // BLOCK)
    record = listed // 8192
    channel, column = coordinates(listed % 8192)
    channel = channel + record // blocks * TILE
    column = column + record % blocks * BLOCK
    lanes[channel, column] = lanes[channel, column].bitwise_and(SIGN).bitwise_or(UPPER)
    return escaped.append(channel, column)


def _assemble(words: torch.Tensor, listed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Records of variable size: uint8 [bytes] and int32 [R + 1] offsets in units."""
    count = words.shape[1]
    heads = words.new_empty((count, DENSE_BYTES + LIST_BLOCKS), dtype=torch.uint8)
    write_records(words, X, heads[:, :DENSE_BYTES])
    in_blocks = torch.bincount(listed >> 8, minlength=count * LIST_BLOCKS).view(count, -1)
    heads[:, DENSE_BYTES:] = in_blocks
    in_records = in_blocks.sum(1)
    offsets = offsets_of(_HEAD_UNITS + (in_records + UNIT - 1) // UNIT)
    start = offsets[:-1].long()
    units = words.new_zeros(int(offsets[-1]), dtype=torch.complex128)
    span = torch.arange(_HEAD_UNITS, device=words.device)
    units[start[:, None] + span] = heads.view(torch.complex128)
    records = units.view(torch.uint8)
    records[_list_places(start, in_records)] = listed.bitwise_and(0xFF).to(torch.uint8)
    return records, offsets


def _list_places(start: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Where the list bytes of records lie, int64 [sum of counts]."""
    before = counts.cumsum(0) - counts
    first = UNIT * (start + _HEAD_UNITS) - before
    return torch.repeat_interleave(first, counts) + torch.arange(
        int(counts.sum()), device=start.device
    )


def _plane(records: torch.Tensor, start: torch.Tensor, in_blocks: torch.Tensor) -> torch.Tensor:
    """The top bits as words, int32 [R * 256]."""
    in_blocks = in_blocks.long()
    positions = records[_list_places(start, in_blocks.sum(1))].long()
    block = torch.arange(in_blocks.numel(), device=records.device)
    positions += torch.repeat_interleave(block, in_blocks.flatten()) * 256
    zeros = torch.zeros(in_blocks.numel() * 8, dtype=torch.int32, device=records.device)
    zeros.index_add_(0, positions >> 5, (1 << positions.bitwise_and(31)).to(torch.int32))
    return zeros.bitwise_not_()


SPARSE_TOP = W11s()

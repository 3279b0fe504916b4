"""Weights as sign, offset in the channel's window and mantissa, plus exact escapes.

A code is 11 bits, `offset * 128 + mantissa`, below the sign at bit 15: the lane that decoding
gives. A weight outside the window has another code of the window in its place (its substitute),
and its true value is an escape.
"""

from dataclasses import dataclass

import torch

from specengine.weights.fragments import RECORDS_AT_ONCE, pack_lanes
from specengine.weights.layout import BLOCK, TILE, Layout
from specengine.weights.native import less_by_row, put

SIGN = -(1 << 15)
CODES = 1 << 11
"""Codes of a window: 16 binades of 128 mantissas."""
UPPER = 1 << 10
"""The first code of the window's upper 8 binades."""


def pad(values: torch.Tensor, fill: int) -> torch.Tensor:
    """Extend [C, K] to whole tiles and blocks."""
    channels, width = values.shape
    extra = (-width % BLOCK, -channels % TILE)
    if not any(extra):
        return values
    return torch.nn.functional.pad(values, (0, extra[0], 0, extra[1]), value=fill)


@dataclass(frozen=True, slots=True)
class Escaped:
    """What stands in for escaped weights of a matrix: int16 [n] lanes, ordered by their places in
    the flattened matrix, int64 [n]."""

    places: torch.Tensor
    lanes: torch.Tensor

    def append(self, places: torch.Tensor, lanes: torch.Tensor) -> "Escaped":
        """With more of them, in the same order."""
        joined, order = torch.cat((self.places, places)).sort()
        return Escaped(joined, torch.cat((self.lanes, lanes))[order])


def base_of(tops: torch.Tensor) -> torch.Tensor:
    """int16 [C]: the BF16 magnitude of code 0; 0 for a channel of zeros."""
    return ((tops - 15) * 128).masked_fill_(tops == 0, 0)


def escape(bits: torch.Tensor, places: torch.Tensor, base: torch.Tensor, lowest: int) -> Escaped:
    """Choose substitutes.

    Args:
        bits: int16 [C, K] BF16 patterns.
        places: int64 [n], sorted, in the flattened matrix.
        base: int16 [C], the magnitude of code 0.
        lowest: code that stands in for everything below the window.
    """
    true = bits.reshape(-1)[places]
    return Escaped(places, substitutes(true, base[places // bits.shape[1]], lowest))


def pack_coded(
    bits: torch.Tensor,
    base: torch.Tensor,
    escaped: Escaped,
    lowest: int,
    layout: Layout,
    records: torch.Tensor,
) -> None:
    """Code channels in their windows and write the lanes into records, some tiles at a time.

    Args:
        bits: int16 [C, K] BF16 patterns.
        base: int16 [C], the magnitude of code 0.
        lowest: code of the zeros of a channel of zeros, and of padding.
        records: uint8 [R, record_bytes], as in `pack_lanes`.
    """
    width = bits.shape[1]
    blocks = -(-width // BLOCK)
    whole = bits.device.type != "cpu"
    step = bits.shape[0] if whole else TILE * max(1, RECORDS_AT_ONCE // blocks)
    firsts = range(0, bits.shape[0], step)
    # A channel of zeros is coded like any other, from below its zeros.
    below = torch.where(base == 0, -lowest, base) if lowest else base
    ends = torch.tensor([width * first for first in (*firsts, bits.shape[0])], device=bits.device)
    bounds = torch.searchsorted(escaped.places, ends).tolist()
    for first, start, end in zip(firsts, bounds[:-1], bounds[1:], strict=True):
        lanes = less_by_row(bits[first : first + step], below[first : first + step])
        put(lanes, escaped.places[start:end] - width * first, escaped.lanes[start:end])
        record = first // TILE * blocks
        padded = pad(lanes, lowest)
        pack_lanes(padded, layout, records[record : record + padded.numel() // (TILE * BLOCK)])


def substitutes(true: torch.Tensor, base: torch.Tensor, lowest: int) -> torch.Tensor:
    """What stands in for escaped patterns, int16 [n], as lanes: sign and code.

    Args:
        base: int16 [n], the magnitude of code 0 in each one's channel.
    """
    large = true.bitwise_and(0x7FFF) - base >= CODES
    code = torch.where(large, CODES - 1, lowest).to(torch.int16)
    return true.bitwise_and(SIGN).bitwise_or_(code)


def clear_zeros(bits: torch.Tensor, tops: torch.Tensor) -> torch.Tensor:
    """Leave only signs in channels of zeros of int16 [C, K], in place."""
    zeros = tops == 0
    if bool(zeros.any()):
        bits[zeros] = bits[zeros].bitwise_and_(SIGN)
    return bits


def escape_entries(
    bits: torch.Tensor, base: torch.Tensor, escaped: Escaped
) -> tuple[torch.Tensor, torch.Tensor]:
    """The escape list of a stretch of channels that begins with a tile.

    Args:
        bits: int16 [C, K], without padding.
        base: int16 [C], the magnitude of code 0.

    Returns:
        int32 [n, 2], sorted by record, channel, input: channel in tile | input << 16, and
        true pattern | substitute << 16; int32 [records], entries of each record.
    """
    width = bits.shape[1]
    blocks = -(-width // BLOCK)
    channel, column = escaped.places // width, escaped.places % width
    record, order = torch.sort(channel // TILE * blocks + column // BLOCK, stable=True)
    held = escaped.lanes + base[channel]
    values = bits.reshape(-1)[escaped.places].to(torch.int32).bitwise_and_(0xFFFF)
    values |= held.to(torch.int32) << 16
    where = (channel % TILE | column << 16).to(torch.int32)
    counts = torch.bincount(record, minlength=-(-bits.shape[0] // TILE) * blocks).to(torch.int32)
    return torch.stack((where, values), dim=1)[order], counts


def restore_escapes(
    bits: torch.Tensor, escapes: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Write true patterns over the substitutes of a stretch.

    Args:
        bits: int16 [C, K], padded to whole records; changed in place.
        escapes: int32 [n, 2].
        offsets: int32 [records + 1], where each record's entries start.
    """
    if escapes.shape[0]:
        channel, column = escape_places(escapes, offsets, bits.shape[1] // BLOCK)
        bits[channel, column] = escapes[:, 1].to(torch.int16)
    return bits


def escape_places(
    escapes: torch.Tensor, offsets: torch.Tensor, blocks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Channel and input of each escape of a stretch, int64 [n]."""
    counts = offsets.diff().long()
    record = torch.repeat_interleave(torch.arange(counts.shape[0], device=escapes.device), counts)
    where = escapes[:, 0].long()
    channel = record // blocks * TILE + where.bitwise_and(0xFFFF)
    return channel, where.bitwise_right_shift(16).bitwise_and(0xFFFF)

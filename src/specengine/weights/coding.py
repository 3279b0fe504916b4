"""Weights as sign, offset in the channel's window and mantissa, plus exact escapes.

A code is 11 bits, `offset * 128 + mantissa`, below the sign at bit 15: the lane that decoding
gives. A weight outside the window has another code of the window in its place (its substitute),
and its true value is an escape.
"""

from dataclasses import dataclass

import torch

from specengine.weights.layout import BLOCK, TILE
from specengine.weights.native import less_by_row
from specengine.weights.window import Windows

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
    """Where lanes are substitutes: int64 [n] each, ordered by channel, then by input."""

    channel: torch.Tensor
    column: torch.Tensor

    def append(self, channel: torch.Tensor, column: torch.Tensor) -> "Escaped":
        """With more of them, in the same order."""
        joined = torch.stack((torch.cat((self.channel, channel)), torch.cat((self.column, column))))
        order = torch.argsort(joined[0] << 32 | joined[1])
        return Escaped(joined[0, order], joined[1, order])


def base_of(tops: torch.Tensor) -> torch.Tensor:
    """int16 [C]: the BF16 magnitude of code 0; 0 for a channel of zeros."""
    return ((tops - 15) * 128).masked_fill_(tops == 0, 0)


def code(bits: torch.Tensor, windows: Windows, lowest: int) -> tuple[torch.Tensor, Escaped]:
    """Code channels in their windows.

    Args:
        bits: int16 [C, K] BF16 patterns.
        lowest: code that stands in for everything below the window, and for the zeros of a channel
            of zeros.

    Returns:
        int16 [C, K] lanes, and which of them are substitutes.
    """
    width = bits.shape[1]
    base = base_of(windows.tops).masked_fill_(windows.tops == 0, -lowest)
    lanes = less_by_row(bits, base)
    escaped = windows.outside
    channel = escaped // width
    lanes.view(-1)[escaped] = substitutes(bits.view(-1)[escaped], base[channel], lowest)
    return lanes, Escaped(channel, escaped % width)


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
    bits: torch.Tensor, lanes: torch.Tensor, tops: torch.Tensor, escaped: Escaped
) -> tuple[torch.Tensor, torch.Tensor]:
    """The escape list of a stretch of channels that begins with a tile.

    Args:
        bits, lanes: int16 [C, K], without padding.

    Returns:
        int32 [n, 2], sorted by record, channel, input: channel in tile | input << 16, and
        true pattern | substitute << 16; int32 [records], entries of each record.
    """
    blocks = -(-bits.shape[1] // BLOCK)
    records = -(-bits.shape[0] // TILE) * blocks
    record = escaped.channel // TILE * blocks + escaped.column // BLOCK
    record, order = torch.sort(record, stable=True)
    channel, column = escaped.channel[order], escaped.column[order]
    held = lanes[channel, column] + base_of(tops)[channel]
    where = (channel % TILE).to(torch.int32) | column.to(torch.int32) << 16
    values = bits[channel, column].to(torch.int32).bitwise_and_(0xFFFF)
    values |= held.to(torch.int32) << 16
    counts = torch.bincount(record, minlength=records).to(torch.int32)
    return torch.stack((where, values), dim=1), counts


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

"""W12: every weight in 12 bits, decoded by masks and shifts (paper section 4.1).

Two layouts of the same bits: `w12` decodes with the fewest instructions; `w12n` nests the paper's
8-bit view (sign, offset, upper three mantissa bits) in the first two thirds of each record, where
the Q pass of two-level verification reads it (paper section 4.3).
"""

import torch

from specengine.weights.coding import (
    base_of,
    clear_zeros,
    escape,
    escape_entries,
    pack_coded,
    restore_escapes,
)
from specengine.weights.fragments import unpack_lanes
from specengine.weights.layout import F, Layout, N
from specengine.weights.packed import Packed, offsets_of
from specengine.weights.window import choose_windows, scales, tops_of

MIDPOINT = 0x0008
"""Low mantissa bits in the 8-bit view: the middle of what was dropped."""
VIEW = Layout(8, tuple(piece for piece in N.pieces if piece.word < 8), ((0, 8),))
"""The first two thirds of a nested record."""


class W12:
    """Encoder and decoder of one of the two layouts; plain torch, any device.

    Args:
        name: `w12` or `w12n`.
        layout: where the bits lie.
    """

    def __init__(self, name: str, layout: Layout) -> None:
        self.name = name
        self.layout = layout
        self.least_record = self.largest_record = layout.record_bytes

    def encode(self, bits: torch.Tensor, room: torch.Tensor | None = None) -> Packed:
        """Pack int16 [C, K], BF16 patterns of channels that begin with a tile.

        Args:
            room: uint8, for records of the least size; taken if given.
        """
        windows = choose_windows(bits)
        base = base_of(windows.tops)
        escaped = escape(bits, windows.outside, base, lowest=0)
        escapes, escape_counts = escape_entries(bits, base, escaped)
        size = (escape_counts.shape[0], self.least_record)
        records = bits.new_empty(size, dtype=torch.uint8) if room is None else room.view(size)
        pack_coded(bits, base, escaped, 0, self.layout, records)
        return Packed(
            self.name,
            (bits.shape[0], bits.shape[1]),
            records.flatten(),
            scales(windows.tops),
            escapes,
            offsets_of(escape_counts),
        )

    def decode(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """BF16 patterns, int16 [C, K], in `out`, whole records of them, where that is given."""
        bits = self._bits(packed, self.layout, 0, out)
        restore_escapes(bits, packed.escapes, packed.escape_offsets)
        return bits[: packed.shape[0], : packed.shape[1]]

    def _bits(
        self, packed: Packed, layout: Layout, fill: int, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        tops = tops_of(packed.scale)
        records = packed.records.view(packed.tiles * packed.blocks, self.layout.record_bytes)
        base = base_of(tops).add_(fill)
        bits = unpack_lanes(records[:, : layout.record_bytes], layout, packed.tiles, base, out)
        return clear_zeros(bits, tops)


def decode_view(packed: Packed) -> torch.Tensor:
    """The weights as the Q pass sees them: bfloat16 [N, K] from the 8-bit view of `w12n`.

    Dropped mantissa bits are at their midpoint; weights outside the window are their substitutes.
    """
    bits = NESTED._bits(packed, VIEW, MIDPOINT)
    return bits[: packed.shape[0], : packed.shape[1]].contiguous().view(torch.bfloat16)


UNNESTED = W12("w12", F)
NESTED = W12("w12n", N)

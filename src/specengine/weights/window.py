"""Which 16 binades of a channel are coded in place (paper section 4.1).

The window of a channel is [E - 15, E] in BF16 exponent fields, 16 <= E <= 254, so that zeros,
denormals, infinities and NaNs always lie outside. A channel of zeros alone gets E = 0: its signs
are coded in place and its scale is 0.
"""

from dataclasses import dataclass

import torch

from specengine.weights.layout import TILE
from specengine.weights.window_search import WindowSearch

LOWEST_TOP = 16
HIGHEST_TOP = 254
ESCAPE_BITS = 64
"""Cost of a weight outside the window: one entry of the escape list."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Attributes:
    tops: int16 [C], the windows' top exponent fields E; 0 for channels of zeros.
    lower: int64 [n], sorted places in the flattened matrix of weights in the lower half of their
        window, where `listed_bits` are counted; none in channels of zeros.
    outside: int64 [n], sorted places of weights outside their window.
    """

    tops: torch.Tensor
    lower: torch.Tensor
    outside: torch.Tensor


def choose_windows(bits: torch.Tensor, *, listed_bits: int = 0) -> Windows:
    """Windows with the fewest bits besides the fixed ones; ties go to the lowest.

    Args:
        bits: int16 [C, K], BF16 patterns.
        listed_bits: what a weight in the lower 8 binades of its window costs.
    """
    if bits.device.type != "cpu":
        return plain_windows(bits.bitwise_and(0x7FFF), listed_bits)
    search = WindowSearch(bits.numpy(), LOWEST_TOP, HIGHEST_TOP, ESCAPE_BITS, listed_bits)
    tops = torch.from_numpy(search.tops)
    if search.open.size:
        rows = torch.from_numpy(search.open)
        tops[rows] = cheapest_of_all(bits[rows].bitwise_and_(0x7FFF), listed_bits)
    return Windows(tops, *map(torch.from_numpy, search.places(search.tops)))


def plain_windows(magnitude: torch.Tensor, listed_bits: int) -> Windows:
    """The same from counts of all exponents, in plain torch, on any device."""
    zeros = magnitude.amax(1) == 0
    tops = cheapest_of_all(magnitude, listed_bits).masked_fill_(zeros, 0)
    half, base, end = (((tops - depth) << 7)[:, None] for depth in (7, 15, -1))
    live = ~zeros[:, None]
    lower = (magnitude >= base) & (magnitude < half) & live
    outside = ((magnitude < base) | (magnitude >= end)) & live
    return Windows(tops, _places(lower)[: None if listed_bits else 0], _places(outside))


def _places(flags: torch.Tensor) -> torch.Tensor:
    return flags.flatten().nonzero().squeeze(1)


def cheapest_of_all(magnitude: torch.Tensor, listed_bits: int) -> torch.Tensor:
    """int16 [C]: the best tops by the plain rule, from counts of all exponents."""
    counts = exponent_counts(magnitude)
    below = torch.nn.functional.pad(counts.cumsum(1, dtype=torch.int32), (1, 0))
    """[C, 257]: weights whose exponent field is smaller than the index."""

    def beneath(distance: int) -> torch.Tensor:
        """Weights below E - distance, for all tops E."""
        return below[:, LOWEST_TOP - distance : HIGHEST_TOP + 1 - distance]

    saved = ESCAPE_BITS * (beneath(-1) - beneath(15))
    if listed_bits:
        saved -= listed_bits * (beneath(7) - beneath(15))
    return (saved.argmax(1) + LOWEST_TOP).to(torch.int16)


def exponent_counts(magnitude: torch.Tensor) -> torch.Tensor:
    """int64 [C, 256]: how many weights of each channel have each exponent field."""
    keys = magnitude.bitwise_right_shift(7)
    # 128 channels of 256 fields are as many keys as 16 bits tell apart without their sign.
    rows = torch.arange(magnitude.shape[0], dtype=torch.int16, device=magnitude.device)
    keys += rows[:, None] % TILE * 256
    parts = (keys[i : i + TILE] for i in range(0, keys.shape[0], TILE))
    counts = [torch.bincount(part.flatten(), minlength=256 * part.shape[0]) for part in parts]
    return torch.cat(counts).view(-1, 256)


def scales(tops: torch.Tensor) -> torch.Tensor:
    """float32 [C padded to whole tiles]: 2 ** (E - 127), whose exponent field is E; 0 for channels
    of zeros and for padding."""
    padded = torch.nn.functional.pad(tops.to(torch.int32), (0, -tops.shape[0] % TILE))
    return padded.bitwise_left_shift(23).view(torch.float32)


def tops_of(scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `scales`, int16."""
    return scale.view(torch.int32).bitwise_right_shift(23).to(torch.int16)

"""Which 16 binades of a channel are coded in place (paper section 4.1).

The window of a channel is [E - 15, E] in BF16 exponent fields, 16 <= E <= 254, so that zeros,
denormals, infinities and NaNs always lie outside. A channel of zeros alone gets E = 0: its signs
are coded in place and its scale is 0.
"""

from dataclasses import dataclass

import torch

from specengine.weights.layout import TILE

LOWEST_TOP = 16
HIGHEST_TOP = 254
ESCAPE_BITS = 64
"""Cost of a weight outside the window: one entry of the escape list."""


def exponent_counts(bits: torch.Tensor) -> torch.Tensor:
    """int64 [C, 256]: how many weights of each channel have each exponent field.

    Args:
        bits: int16 [C, K], BF16 patterns.
    """
    keys = bits.bitwise_and(0x7FFF).bitwise_right_shift_(7)
    # 128 channels of 256 fields are as many keys as 16 bits tell apart without their sign.
    keys += torch.arange(bits.shape[0], dtype=torch.int16, device=bits.device)[:, None] % TILE * 256
    parts = (keys[i : i + TILE] for i in range(0, keys.shape[0], TILE))
    counts = [torch.bincount(part.flatten(), minlength=256 * part.shape[0]) for part in parts]
    return torch.cat(counts).view(-1, 256)


@dataclass(frozen=True, slots=True)
class Windows:
    """Attributes:
    tops: int16 [C], the windows' top exponent fields E; 0 for channels of zeros.
    outside: bool [C], channels that have weights outside their window.
    """

    tops: torch.Tensor
    outside: torch.Tensor


def choose_windows(bits: torch.Tensor, *, listed_bits: int = 0) -> Windows:
    """Windows with the fewest bits besides the fixed ones; ties go to the lowest.

    Args:
        bits: int16 [C, K], BF16 patterns.
        listed_bits: what a weight in the lower 8 binades of its window costs.
    """
    counts = exponent_counts(bits)
    below = torch.nn.functional.pad(counts.cumsum(1, dtype=torch.int32), (1, 0))
    """[C, 257]: weights whose exponent field is smaller than the index."""

    def under(distance: int) -> torch.Tensor:
        """Weights below E - distance, for all tops E."""
        return below[:, LOWEST_TOP - distance : HIGHEST_TOP + 1 - distance]

    covered = under(-1) - under(15)
    saved = ESCAPE_BITS * covered
    if listed_bits:
        saved -= listed_bits * (under(7) - under(15))
    best = saved.argmax(1, keepdim=True)
    zeros = _channels_of_zeros(bits, counts)
    tops = (best.squeeze(1) + LOWEST_TOP).to(torch.int16).masked_fill_(zeros, 0)
    outside = covered.gather(1, best).squeeze(1) < bits.shape[1]
    return Windows(tops, outside.logical_and_(zeros.logical_not()))


def _channels_of_zeros(bits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """bool [C]: channels [C, K] that hold zeros of either sign and nothing else."""
    zeros = counts[:, 0] == bits.shape[1]
    for row in zeros.nonzero().flatten().tolist():
        zeros[row] = not bool(bits[row].bitwise_and(0x7FFF).any())
    return zeros


def scales(tops: torch.Tensor) -> torch.Tensor:
    """float32 [C padded to whole tiles]: 2 ** (E - 127), whose exponent field is E; 0 for channels
    of zeros and for padding."""
    padded = torch.nn.functional.pad(tops.to(torch.int32), (0, -tops.shape[0] % TILE))
    return padded.bitwise_left_shift(23).view(torch.float32)


def tops_of(scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `scales`, int16."""
    return scale.view(torch.int32).bitwise_right_shift(23).to(torch.int16)

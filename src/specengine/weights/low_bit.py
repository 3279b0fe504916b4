"""Low-bit copies of a matrix: small floats with one scale per channel.

The Q pass of two-level verification (paper section 4.3) may read a separate copy instead of the
8-bit view of W12: at the same or a smaller size a copy with its own scale is closer to the
weights. Each value is a sign, a 2-bit exponent and 5, 4 or 3 mantissa bits, subnormals included;
its smallest normal magnitude is 1 and its largest 8 - 2 ** (2 - mantissa bits).

In a lane the value is a BF16 pattern of exponent field 0 to 3, so that lane * 2 ** 126 is the value
and decoding is masks and shifts. Copies are lossy: nothing here decides about a token.
"""

from dataclasses import dataclass

import torch

from specengine.errors import OptionError
from specengine.weights.coding import SIGN, pad
from specengine.weights.fragments import pack_lanes, unpack_lanes
from specengine.weights.layout import BLOCK, E6, E7, E8, TILE, Layout

LAYOUTS: dict[str, tuple[Layout, int]] = {"e2m5": (E8, 5), "e2m4": (E7, 4), "e2m3": (E6, 3)}
"""Layout and mantissa bits by format."""


@dataclass(frozen=True, slots=True)
class LowBit:
    """A lossy copy of a matrix [N, K]: weight ~ scale * value.

    Attributes:
        format: `e2m5` (8 bits), `e2m4` (7) or `e2m3` (6).
        shape: (N, K).
        records: uint8 [R, record bytes], in the order of lossless records.
        scale: float32 [N padded to 128], positive; 0 for channels of zeros and padding.
    """

    format: str
    shape: tuple[int, int]
    records: torch.Tensor
    scale: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.records.nbytes + self.scale.nbytes


def encode_low_bit(matrix: torch.Tensor, name: str) -> LowBit:
    """Round a bfloat16 matrix to the nearest values under power-of-two scales.

    Raises:
        OptionError: unknown format.
    """
    _, mantissa = _layout(name)
    finite = _finite(matrix)
    largest = finite.abs().amax(1)
    top = 8.0 - 2.0 ** (2 - mantissa)
    fraction, exponent = torch.frexp(largest / top)
    fits = torch.ldexp(torch.ones_like(largest), exponent - (fraction == 0.5).int())
    # One outlier should not cost the whole channel a bit: halved scales saturate it instead.
    candidates = [normal_scale(fits / divisor, largest) for divisor in (1, 2, 4)]
    return pack_low_bit(matrix, name, closest_scale(finite, mantissa, candidates))


def normal_scale(scale: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Scales whose reciprocals are finite; 0 where the largest magnitude is."""
    return torch.where(largest > 0, scale.clamp(min=2.0**-126), 0.0)


def closest_scale(
    matrix: torch.Tensor, mantissa: int, candidates: list[torch.Tensor]
) -> torch.Tensor:
    """The candidate scale float32 [N] with the smallest squared error, by channel."""
    best = candidates[0]
    least = _squared_error(matrix, best, mantissa)
    for scale in candidates[1:]:
        error = _squared_error(matrix, scale, mantissa)
        best = torch.where(error < least, scale, best)
        least = torch.minimum(error, least)
    return best


def pack_low_bit(matrix: torch.Tensor, name: str, scale: torch.Tensor) -> LowBit:
    """Round a matrix under given scales, float32 [N]; too large weights saturate, NaN becomes 0."""
    layout, mantissa = _layout(name)
    codes = round_to_codes(_finite(matrix), scale, mantissa)
    signs = matrix.contiguous().view(torch.int16).bitwise_and(SIGN)
    lanes = pad(codes.bitwise_left_shift_(7 - mantissa).bitwise_or_(signs), 0)
    count = lanes.numel() // (TILE * BLOCK)
    records = lanes.new_empty((count, layout.record_bytes), dtype=torch.uint8)
    pack_lanes(lanes, layout, records)
    padded = torch.nn.functional.pad(scale, (0, -scale.shape[0] % TILE))
    return LowBit(name, (matrix.shape[0], matrix.shape[1]), records, padded)


def values_of(copy: LowBit) -> torch.Tensor:
    """The unscaled values, float32 [N, K]."""
    layout, mantissa = _layout(copy.format)
    tiles = copy.records.shape[0] // -(-copy.shape[1] // BLOCK)
    lanes = unpack_lanes(copy.records, layout, tiles)
    lanes = lanes[: copy.shape[0], : copy.shape[1]]
    codes = lanes.bitwise_and(0x7FFF).bitwise_right_shift(7 - mantissa)
    return torch.where(lanes < 0, -1.0, 1.0) * values_of_codes(codes, mantissa)


def decode_low_bit(copy: LowBit) -> torch.Tensor:
    """scale * value, float32 [N, K]."""
    return values_of(copy) * copy.scale[: copy.shape[0], None]


def round_to_codes(matrix: torch.Tensor, scale: torch.Tensor, mantissa: int) -> torch.Tensor:
    """Nearest codes int16 [N, K] of magnitudes, ties to even: exponent << mantissa | mantissa."""
    magnitude = torch.where(scale > 0, 1 / scale, 0.0)[:, None] * matrix.abs()
    exponent = torch.frexp(magnitude).exponent.clamp_(1, 3)
    steps = torch.ldexp(magnitude, mantissa + 1 - exponent).round_()
    codes = steps.to(torch.int32) + ((exponent - 1) << mantissa)
    return codes.clamp_(max=(4 << mantissa) - 1).to(torch.int16)


def values_of_codes(codes: torch.Tensor, mantissa: int) -> torch.Tensor:
    """Magnitudes float32 of codes."""
    exponent = (codes >> mantissa).to(torch.int32)
    fraction = codes.bitwise_and((1 << mantissa) - 1).float() / (1 << mantissa)
    return torch.ldexp(fraction + (exponent > 0), (exponent - 1).clamp_(min=0))


def _squared_error(matrix: torch.Tensor, scale: torch.Tensor, mantissa: int) -> torch.Tensor:
    codes = round_to_codes(matrix, scale, mantissa)
    rounded = values_of_codes(codes, mantissa) * scale[:, None]
    return (matrix.abs() - rounded).square_().sum(1, dtype=torch.float64)


def _finite(matrix: torch.Tensor) -> torch.Tensor:
    """float32, with NaN as 0; magnitudes end at 2 ** 127, so that no rounding overflows."""
    return torch.nan_to_num(matrix.float(), nan=0.0).clamp_(-(2.0**127), 2.0**127)


def _layout(name: str) -> tuple[Layout, int]:
    if name not in LAYOUTS:
        raise OptionError(
            f"'{name}' is not a low-bit format", where="format", fix=f"use {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]

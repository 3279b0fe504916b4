"""The 8-bit copy of the LM head, with what it takes to bound its error (paper section 4.1).

For a row w = scale * q + r of the head and a hidden state h, the copy's logit scale * <q, h> is
within ||r|| * ||h|| of the true one (Cauchy-Schwarz), accumulation errors aside. A token whose
upper bound lies below another's lower bound cannot be the argmax.
"""

import math
from dataclasses import dataclass

import torch

from specengine.weights.layout import TILE
from specengine.weights.low_bit import LowBit, closest_scale, normal_scale, pack_low_bit, values_of

FORMAT = "e2m5"
_MANTISSA = 5
_LARGEST = 8.0 - 2.0 ** (2 - _MANTISSA)
_CLIPS = (1.0, 0.85, 0.7, 0.6, 0.5)
"""Scales that are tried, relative to the one under which nothing saturates."""


@dataclass(frozen=True, slots=True)
class HeadCopy:
    """Attributes:
    copy: the head in 8 bits, with any positive scale per row.
    residual_norm: float32 [N padded to 128], at least ||w - scale * q||; infinite for rows that
        hold infinities or NaN, 0 for padding.
    weight_norm: float32 [N padded to 128], at least ||w||, for the accumulation error.
    """

    copy: LowBit
    residual_norm: torch.Tensor
    weight_norm: torch.Tensor


def encode_head(matrix: torch.Tensor) -> HeadCopy:
    """Copy a bfloat16 head [V, K], a stretch of rows at a time."""
    step = TILE * max(1, (1 << 22) // (TILE * matrix.shape[1]))
    parts = [_encode(matrix[i : i + step]) for i in range(0, matrix.shape[0], step)]
    copies = [part.copy for part in parts]
    whole = LowBit(
        FORMAT,
        (matrix.shape[0], matrix.shape[1]),
        torch.cat([copy.records for copy in copies]),
        torch.cat([copy.scale for copy in copies]),
    )
    return HeadCopy(
        whole,
        torch.cat([part.residual_norm for part in parts]),
        torch.cat([part.weight_norm for part in parts]),
    )


def _encode(rows: torch.Tensor) -> HeadCopy:
    exact = rows.float()
    finite = exact.isfinite().all(1)
    safe = torch.where(finite[:, None], exact, 0.0)
    largest = safe.abs().amax(1)
    candidates = [normal_scale(largest / _LARGEST * clip, largest) for clip in _CLIPS]
    scale = closest_scale(safe, _MANTISSA, candidates)
    copy = pack_low_bit(rows, FORMAT, scale)
    residual = safe.double() - values_of(copy).double() * scale.double()[:, None]
    return HeadCopy(copy, _norm(residual, finite), _norm(safe.double(), finite))


def _norm(rows: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Row norms of float64 [n, K] as float32, rounded up; infinite where a row is not finite."""
    # A sum of K squares and its root err by less than (K + 2) half units of float64.
    slack = 1 + (rows.shape[1] + 4) * 2.0**-53
    norm = rows.square().sum(1).sqrt() * slack
    up = torch.nextafter(norm.float(), torch.tensor(math.inf, device=rows.device))
    up = torch.where(norm == 0, 0.0, up).masked_fill(~finite, math.inf)
    return torch.nn.functional.pad(up, (0, -up.shape[0] % TILE))

"""What a packed matrix costs, and why: bits per weight by cause, and what escaped."""

from dataclasses import asdict, dataclass

import torch

from specengine.weights.coding import CODES, base_of
from specengine.weights.layout import BLOCK, TILE, F, X
from specengine.weights.packed import Packed
from specengine.weights.window import tops_of

_PLACE_BITS = {"w12": 12, "w12n": 12, "w11s": 11}
_PLACE_BYTES = {"w12": F.record_bytes, "w12n": F.record_bytes, "w11s": X.record_bytes}


@dataclass(frozen=True, slots=True)
class Facts:
    """Costs are in bits per weight and add up to `total`.

    Attributes:
        in_place: sign, offset and mantissa.
        lists: positions of zero top bits (w11s), counts and filling included.
        escapes: weights outside their channel's window.
        index: scales and offsets.
        padding: coded places beyond the matrix's edges.
        escaped: number of escapes by cause; `crowded` weights were in the window, but their
            record's list was full.
        channels_of_zeros: channels that need no escapes because nothing but zeros is in them.
    """

    total: float
    in_place: float
    lists: float
    escapes: float
    index: float
    padding: float
    escaped: dict[str, int]
    channels_of_zeros: int

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def describe(packed: Packed) -> Facts:
    """Facts of a matrix; its records are not read."""
    weights = packed.shape[0] * packed.shape[1]
    count = packed.tiles * packed.blocks
    places = count * TILE * BLOCK
    bits = _PLACE_BITS[packed.format]

    def per_weight(number: int) -> float:
        return 8 * number / weights

    arrays = packed.arrays()
    index = sum(arrays[name].nbytes for name in arrays if name not in ("records", "escapes"))
    return Facts(
        total=per_weight(packed.nbytes),
        in_place=float(bits),
        lists=per_weight(packed.records.numel() - count * _PLACE_BYTES[packed.format]),
        escapes=per_weight(packed.escapes.nbytes),
        index=per_weight(index),
        padding=bits * (places - weights) / weights,
        escaped=_causes(packed),
        channels_of_zeros=int((packed.scale[: packed.shape[0]] == 0).sum()),
    )


def _causes(packed: Packed) -> dict[str, int]:
    true = packed.escapes[:, 1].to(torch.int16).bitwise_and(0x7FFF)
    counts = packed.escape_offsets.diff().long()
    record = torch.repeat_interleave(torch.arange(counts.shape[0], device=true.device), counts)
    channel = record // packed.blocks * TILE + packed.escapes[:, 0].bitwise_and(0xFFFF)
    base = base_of(tops_of(packed.scale))[channel]
    finite, normal = true < 0x7F80, true >= 0x0080
    causes = {
        "zero": true == 0,
        "subnormal": (true > 0) & ~normal,
        "small": normal & (true < base),
        "crowded": (true >= base) & (true - base < CODES),
        "large": finite & (true - base >= CODES),
        "not_finite": ~finite,
    }
    return {cause: int(which.sum()) for cause, which in causes.items()}

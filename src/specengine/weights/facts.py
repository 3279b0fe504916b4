"""What a packed matrix costs, and why: bits per weight by cause, and what escaped."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from specengine.weights.coding import CODES, base_of
from specengine.weights.layout import BLOCK, TILE
from specengine.weights.manifest import StoredArray
from specengine.weights.packed import Packed
from specengine.weights.stored_form import HALF, LAYOUTS
from specengine.weights.window import tops_of


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
    """Facts of a matrix in memory; its records are not read."""
    sizes = {name: array.nbytes for name, array in packed.arrays().items()}
    return _facts(packed, sizes, packed.tiles * TILE * packed.blocks * BLOCK)


def describe_stored(packed: Packed, arrays: Mapping[str, StoredArray]) -> Facts:
    """Facts of a matrix on disk, where its arrays have these sizes."""
    sizes = {name: array.end - array.begin for name, array in arrays.items()}
    return _facts(packed, sizes, stored_places(*packed.shape))


def stored_places(rows: int, width: int) -> int:
    """Coded places of a matrix on disk: channels to a multiple of 64, inputs too."""
    return -(-rows // HALF) * HALF * -(-width // BLOCK) * BLOCK


def _facts(packed: Packed, sizes: dict[str, int], places: int) -> Facts:
    weights = packed.shape[0] * packed.shape[1]
    bits = LAYOUTS[packed.format].words

    def per_weight(number: int) -> float:
        return 8 * number / weights

    return Facts(
        total=per_weight(sum(sizes.values())),
        in_place=float(bits),
        lists=per_weight(sizes["records"] - places * bits // 8),
        escapes=per_weight(sizes["escapes"]),
        index=per_weight(
            sum(size for name, size in sizes.items() if name not in ("records", "escapes"))
        ),
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

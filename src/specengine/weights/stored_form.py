"""The smaller form that a packed matrix has on disk. Reading restores the arrays byte for byte.

* `tops` instead of scales: U8 [N], the exponent field of the scale.
* `escape_counts` U16 and, for w11s, `list_units` U8 per record instead of running offsets.
* `escapes` as pairs U16: place in the record, channel * 64 + input, and the true pattern; record,
  tile and substitute follow from the rest.
* Where the last tile has at most 64 channels, its records leave out their second halves, which
  hold nothing but zero bits (`trim`, `untrim`).
"""

from dataclasses import replace

import torch

from specengine.weights.coding import UPPER, base_of, substitutes
from specengine.weights.layout import BLOCK, TILE, F, Layout, N, X
from specengine.weights.packed import UNIT, Packed, offsets_of
from specengine.weights.w11s import DENSE_BYTES, LIST_BLOCKS
from specengine.weights.window import scales, tops_of

LAYOUTS: dict[str, Layout] = {"w12": F, "w12n": N, "w11s": X}
_LEAST_UNITS = (DENSE_BYTES + LIST_BLOCKS) // UNIT
HALF = TILE // 2


def to_disk(packed: Packed) -> dict[str, torch.Tensor]:
    """The arrays besides the records, which may be on the meta device."""
    channel = packed.escapes[:, 0].bitwise_and(0xFFFF)
    column = packed.escapes[:, 0].bitwise_right_shift(16).bitwise_and(BLOCK - 1)
    place = (channel * BLOCK + column).to(torch.int16)
    true = packed.escapes[:, 1].to(torch.int16)
    arrays = {"tops": tops_of(packed.scale[: packed.shape[0]]).to(torch.uint8)}
    if packed.record_offsets is not None:
        units = packed.record_offsets.diff() - _LEAST_UNITS
        arrays["list_units"] = units.to(torch.uint8)
    arrays["escape_counts"] = packed.escape_offsets.diff().to(torch.int16).view(torch.uint16)
    arrays["escapes"] = torch.stack((place, true), dim=1).view(torch.uint16)
    return arrays


def from_disk(
    form: str, shape: tuple[int, int], arrays: dict[str, torch.Tensor], records: torch.Tensor
) -> Packed:
    """The inverse of `to_disk`; for w11s sizes come from the arrays, not from `records`."""
    scale = scales(arrays["tops"].to(torch.int16))
    counts = arrays["escape_counts"].to(torch.int32)
    pairs = arrays["escapes"].view(torch.int16)
    units = arrays.get("list_units")
    packed = Packed(
        form,
        shape,
        records,
        scale,
        pairs.new_zeros((pairs.shape[0], 2), dtype=torch.int32),
        offsets_of(counts),
        None if units is None else offsets_of(_LEAST_UNITS + units.to(torch.int32)),
    )
    record = torch.repeat_interleave(torch.arange(counts.shape[0]), counts.long())
    place, true = pairs[:, 0].to(torch.int32).bitwise_and(0xFFFF), pairs[:, 1]
    channel = place // BLOCK
    column = (record % packed.blocks * BLOCK).to(torch.int32) + place % BLOCK
    base = base_of(tops_of(scale))[record // packed.blocks * TILE + channel]
    held = base + substitutes(true, base, UPPER if form == "w11s" else 0)
    packed.escapes[:, 0] = channel | column << 16
    packed.escapes[:, 1] = true.to(torch.int32).bitwise_and_(0xFFFF) | held.to(torch.int32) << 16
    return packed


def is_trimmed(shape: tuple[int, int]) -> bool:
    """Whether the records of the last tile are stored without their second halves."""
    return 0 < shape[0] % TILE <= HALF


def stored_byte(index: Packed, record: int) -> int:
    """Where a record of a matrix begins on disk; `records` of the index are not read."""
    layout = LAYOUTS[index.format]
    last = (index.tiles - 1) * index.blocks
    if index.record_offsets is None:
        byte = layout.record_bytes * record
    else:
        byte = UNIT * int(index.record_offsets[record])
    if is_trimmed(index.shape) and record > last:
        byte -= (record - last) * layout.record_bytes // 2
    return byte


def trim(packed: Packed) -> torch.Tensor:
    """Records of a stretch as they are stored, uint8 [bytes]."""
    if not is_trimmed(packed.shape):
        return packed.records
    whole = packed.stretch(packed.tiles - 1, 1)
    kept = [packed.records[: packed.records.numel() - whole.records.numel()]]
    layout = LAYOUTS[packed.format]
    for record in _records(whole):
        at = 0
        for _, words in layout.sections:
            kept.append(record[at : at + 512 * words])
            at += 1024 * words
        kept.append(record[at:])
    return torch.cat(kept)


def untrim(stored: torch.Tensor, packed: Packed) -> Packed:
    """The inverse of `trim`: `packed`, whose records are not read, with these records."""
    if not is_trimmed(packed.shape):
        return replace(packed, records=stored)
    layout = LAYOUTS[packed.format]
    halved = packed.blocks * layout.record_bytes // 2
    records = stored.new_zeros(stored.numel() + halved)
    full = replace(packed, records=records)
    tail = full.stretch(full.tiles - 1, 1)
    taken = records.numel() - tail.records.numel()
    records[:taken] = stored[:taken]
    for record in _records(tail):
        at = 0
        for _, words in layout.sections:
            record[at : at + 512 * words] = stored[taken : taken + 512 * words]
            at += 1024 * words
            taken += 512 * words
        record[at:] = stored[taken : taken + record.numel() - at]
        taken += record.numel() - at
    return full


def _records(packed: Packed) -> list[torch.Tensor]:
    """Views of single records."""
    if packed.record_offsets is None:
        return list(packed.records.view(packed.tiles * packed.blocks, -1))
    bounds = (UNIT * packed.record_offsets).tolist()
    return [packed.records[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]

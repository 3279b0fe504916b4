"""The header of a safetensors file, read as if somebody had forged it.

A file is an 8-byte little-endian header length, a JSON header that gives each tensor a dtype, a
shape and a byte range, then the data. Ranges must tile the data: one that overlaps another, leaves
a hole or ends outside the file would hand out bytes that are not the tensor's.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from specengine.errors import CheckpointError

LONGEST_HEADER = 100_000_000
"""Bytes; the reference implementation refuses longer ones, too."""
MOST_DIMENSIONS = 64
LARGEST_SIZE = (1 << 63) - 1
_PREFIX = 8
_FIX = "download or encode it again"
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 16),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Size of an item of each dtype."""


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """Where a tensor lies: `begin` and `end` are offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def read_header(path: Path) -> tuple[list[SourceTensor], bytes]:
    """Tensors of a shard in the order of their data, and the raw header with its length.

    Raises:
        CheckpointError: the file is missing, cut, or its header cannot be true.
    """
    if not path.is_file():
        raise _fault(path, "is missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_PREFIX)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _PREFIX or (_PREFIX + length > size and length <= LONGEST_HEADER):
            raise _fault(path, f"is truncated ({size} bytes end inside the header)")
        if length > LONGEST_HEADER:
            raise _fault(path, f"is no safetensors file (its header would have {length} bytes)")
        text = file.read(length)
    start = _PREFIX + length
    tensors = [
        _tensor(path, name, entry, start)
        for name, entry in _table(path, text).items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_tiling(path, tensors, start, size)
    return tensors, prefix + text


def _table(path: Path, text: bytes) -> dict[str, Any]:
    try:
        table = json.loads(text, object_pairs_hook=without_repeats)
    except RecursionError as error:
        raise _fault(path, "has a corrupt header (nested too deeply)") from error
    except ValueError as error:
        raise _fault(path, f"has a corrupt header ({error})") from error
    if not isinstance(table, dict):
        raise _fault(path, "has a corrupt header (not a JSON object)")
    return table


def without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of which no key says two things; for `object_pairs_hook`.

    Raises:
        ValueError: a key appears twice.
    """
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{key!r:.80} appears twice")
        table[key] = value
    return table


def _tensor(path: Path, name: str, entry: Any, start: int) -> SourceTensor:
    """One entry, checked against itself."""
    label = f"tensor {name!r:.120}"
    if not name.isprintable():
        raise _fault(path, f"{label} has a name that cannot be shown")
    if not isinstance(entry, dict):
        raise _fault(path, f"{label} is described by no JSON object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _fault(path, f"{label} has the unknown dtype {dtype!r:.40}")
    if not _are_sizes(shape) or len(shape) > MOST_DIMENSIONS:
        raise _fault(path, f"{label} has the impossible shape {shape!r:.60}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _fault(path, f"{label} has the impossible byte range {offsets!r:.60}")
    found, wanted = offsets[1] - offsets[0], BITS[dtype] * math.prod(shape)
    if 8 * found != wanted:
        raise _fault(path, f"{label} has {found} bytes, its shape needs {-(-wanted // 8)}")
    return SourceTensor(name, dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of whole numbers that a file can have."""
    return isinstance(value, list) and all(
        type(one) is int and 0 <= one <= LARGEST_SIZE for one in value
    )


def _check_tiling(path: Path, tensors: list[SourceTensor], start: int, size: int) -> None:
    end = start
    for before, tensor in zip([None, *tensors], tensors, strict=False):
        if tensor.begin < end and before is not None:
            raise _fault(path, f"tensors {before.name!r:.80} and {tensor.name!r:.80} overlap")
        if tensor.begin > end:
            raise _fault(path, f"has bytes before tensor {tensor.name!r:.80} that belong to none")
        end = tensor.end
    if end != size:
        raise _fault(path, f"is truncated or padded ({size} bytes, the header describes {end})")


def _fault(path: Path, what: str) -> CheckpointError:
    return CheckpointError(what, where=str(path), fix=_FIX)

"""Arrays that somebody else wrote: refused by what they announce, before they get memory."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

ARCHIVE_ERRORS = (
    ValueError, KeyError, OSError, EOFError, MemoryError, OverflowError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What reading such an archive may raise: methods nobody has and damage of every kind included."""
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_MOST_ARRAYS = 1 << 16


def read_archive(source: Path | IO[bytes], largest_bytes: int) -> dict[str, NDArray[Any]]:
    """Every array of an `.npz`, by name.

    Args:
        largest_bytes: of all arrays together, unpacked.

    Raises:
        One of `ARCHIVE_ERRORS`: too large, an array that announces more than the archive holds,
        objects instead of numbers, or no archive at all.
    """
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > largest_bytes:
            raise ValueError(f"{size} bytes when unpacked")
        if len(entries) > _MOST_ARRAYS:
            raise ValueError(f"{len(entries)} arrays")
        for entry in entries:
            _check_header(archive, entry)
    if not isinstance(source, Path):
        source.seek(0)
    with np.load(source, allow_pickle=False) as arrays:
        return {name: np.asarray(arrays[name]) for name in arrays.files}


def _check_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """The array's size by its header, which numpy would believe, against its bytes."""
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"array format {version}")
        shape, _, kind = _HEADERS[version](stream)
    announced = math.prod(shape) * kind.itemsize
    if kind.hasobject or kind.itemsize == 0 or not 0 <= announced <= entry.file_size:
        raise ValueError(f"an array of {announced} bytes in {entry.file_size}")


def to_edges(edge: NDArray[Any]) -> NDArray[np.float32]:
    """Edge scores in single precision; what lies beyond it becomes infinite."""
    with np.errstate(over="ignore"):
        return edge.astype(np.float32)

"""Tensors of an encoded folder, packed or as they were."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from specengine.errors import CheckpointError
from specengine.weights.checks import check_index, check_lists
from specengine.weights.layout import BLOCK, TILE
from specengine.weights.manifest import StoredArray, StoredTensor, read_manifest
from specengine.weights.packed import Packed
from specengine.weights.registry import decode, tiles_at_once
from specengine.weights.source import DataFile
from specengine.weights.stored_form import (
    LAYOUTS,
    from_disk,
    is_trimmed,
    stored_byte,
    untrim,
)

_FIX = "encode the checkpoint again"
_ARRAY_DTYPES = {"U8": torch.uint8, "U16": torch.uint16}
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class EncodedFolder:
    """A folder that `encode_folder` finished.

    Args:
        folder: holds `weights.json`.

    Raises:
        CheckpointError: it does not, or the file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)

    def packed(self, name: str) -> Packed:
        """A tensor in its lossless format; plain tensors have none.

        Raises:
            CheckpointError: missing, or its arrays are no packed matrix.
        """
        tensor = self._tensor(name)
        with self._open(tensor) as data:
            stored = StoredMatrix(name, tensor, data, self._start(tensor))
            _, whole = stored.stretch(0, stored.index.tiles)
        check_lists(whole, name)
        return whole

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor as it was in the original checkpoint, bit for bit.

        Raises:
            CheckpointError: missing or damaged.
        """
        tensor = self._tensor(name)
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(
                f"has the dtype {tensor.dtype}, which torch lacks", where=name, fix="leave it out"
            )
        dtype = _DTYPES[tensor.dtype]
        if tensor.format == "plain":
            with self._open(tensor) as data:
                octets = read_array(data, self._start(tensor), tensor.arrays["data"])
            return octets.view(dtype).view(tensor.shape)
        return decode(self.packed(name)).view(tensor.shape)

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.manifest.tensors:
            raise CheckpointError(
                f"holds no tensor {name}", where=str(self.folder), fix="check the name"
            )
        return self.manifest.tensors[name]

    def _open(self, tensor: StoredTensor) -> DataFile:
        path = self.folder / tensor.shard
        if not path.is_file():
            raise CheckpointError("is missing", where=str(path), fix="encode the checkpoint again")
        return DataFile(path)

    def _start(self, tensor: StoredTensor) -> int:
        return self.manifest.shards[tensor.shard].header_bytes


class StoredMatrix:
    """A packed tensor on disk: its index in memory, its records read by stretch.

    Raises:
        CheckpointError: the tensor is plain, or its arrays are no packed matrix.
    """

    def __init__(self, name: str, tensor: StoredTensor, data: DataFile, start: int) -> None:
        if tensor.format == "plain":
            raise CheckpointError("is not packed", where=name, fix="read it as a plain tensor")
        self.name = name
        self._data = data
        arrays = tensor.arrays
        self._first = start + arrays["records"].begin
        small = {
            key: read_array(data, start, array).view(_ARRAY_DTYPES[array.dtype]).view(array.shape)
            for key, array in arrays.items()
            if key not in ("records", "padding")
        }
        size = arrays["records"].end - arrays["records"].begin
        self.index = _index(name, tensor.format, tensor.matrix, small, size)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """(first tile, tiles) of stretches that are read at once."""
        step = tiles_at_once(self.index.shape[1])
        for first in range(0, self.index.tiles, step):
            yield first, min(step, self.index.tiles - first)

    def stretch(self, first: int, count: int) -> tuple[torch.Tensor, Packed]:
        """The stored bytes of tiles [first, first + count), and the tiles.

        Lists of w11s are for `check_lists` to check.
        """
        blocks = self.index.blocks
        low, high = (stored_byte(self.index, (first + tiles) * blocks) for tiles in (0, count))
        stored = self._data.read(self._first + low, self._first + high)
        return stored, untrim(stored, self.index.stretch(first, count))


def _index(
    name: str, form: str, shape: tuple[int, int], arrays: dict[str, torch.Tensor], size: int
) -> Packed:
    """Everything of a matrix but its records, checked against their stored size."""
    records = -(-shape[0] // TILE) * -(-shape[1] // BLOCK)
    sizes = {"tops": (shape[0],), "escape_counts": (records,)}
    if form == "w11s":
        sizes["list_units"] = (records,)
    for key, wanted in sizes.items():
        if key not in arrays or arrays[key].shape != wanted:
            raise CheckpointError(f"{key} does not have {wanted[0]} entries", where=name, fix=_FIX)
    escapes = int(arrays["escape_counts"].to(torch.int64).sum())
    if arrays["escapes"].shape != (escapes, 2):
        raise CheckpointError(f"escapes does not have {escapes} entries", where=name, fix=_FIX)
    # Reading them looks up each one's channel; whether that is in the matrix is checked after.
    if bool((arrays["escapes"][:, 0].to(torch.int32) >= TILE * BLOCK).any()):
        raise CheckpointError("an escape lies outside its record", where=name, fix=_FIX)
    unread = torch.empty(0, dtype=torch.uint8, device="meta")
    index = from_disk(form, shape, arrays, unread)
    whole = stored_byte(index, records)
    if whole != size:
        raise CheckpointError(f"records has {size} bytes, not {whole}", where=name, fix=_FIX)
    if is_trimmed(shape):
        whole += index.blocks * LAYOUTS[form].record_bytes // 2
    index = replace(index, records=unread.new_empty(whole))
    check_index(index, name)
    return index


def read_array(data: DataFile, start: int, array: StoredArray) -> torch.Tensor:
    """Bytes of an array, uint8."""
    return data.read(start + array.begin, start + array.end)

"""Tensors of a checkpoint folder by name, read in pieces."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from specengine.errors import CheckpointError
from specengine.shards import check_shards, read_json

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "U8": 1, "I8": 1}
_FIX = "download or encode it again"
PIECE = 1 << 24
"""Bytes of a tensor that are read at once where nothing else sets a size."""


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


class DataFile:
    """A file whose byte ranges are read without moving a shared position, from any thread.

    Use as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> "DataFile":
        self._descriptor = os.open(self.path, os.O_RDONLY)
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._descriptor)

    def read(self, begin: int, end: int) -> torch.Tensor:
        """uint8 [end - begin].

        Raises:
            CheckpointError: the file ends before, or the range is none.
        """
        if not 0 <= begin <= end:
            raise CheckpointError(f"has no bytes {begin} to {end}", where=str(self.path), fix=_FIX)
        buffer = torch.empty(end - begin, dtype=torch.uint8)
        view = octets_of(buffer)
        done = 0
        while done < len(view):
            count = os.preadv(self._descriptor, [view[done:]], begin + done)
            if count == 0:
                raise CheckpointError(
                    f"ends at byte {begin + done}",
                    where=str(self.path),
                    fix=_FIX,
                )
            done += count
        return buffer

    def pieces(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """The range in pieces."""
        for start in range(begin, end, PIECE):
            yield self.read(start, min(end, start + PIECE))


def octets_of(array: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, for hashes and files."""
    return array.flatten().view(torch.uint8).numpy().data


def source_shards(folder: Path) -> list[Path]:
    """The shards of a checkpoint, checked.

    Raises:
        CheckpointError: as `check_shards`.
    """
    check_shards(folder)
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    table = read_json(index)["weight_map"]
    assert isinstance(table, dict)
    return [folder / name for name in sorted(set(table.values()))]


def read_header(path: Path) -> tuple[list[SourceTensor], bytes]:
    """Tensors of a shard in the order of their data, and the raw header with its length.

    Raises:
        CheckpointError: a tensor's bytes are more or fewer than its shape needs.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        text = file.read(int.from_bytes(prefix, "little"))
    start = 8 + len(text)
    tensors = [
        SourceTensor(
            name,
            entry["dtype"],
            tuple(entry["shape"]),
            start + entry["data_offsets"][0],
            start + entry["data_offsets"][1],
        )
        for name, entry in json.loads(text).items()
        if name != "__metadata__"
    ]
    for tensor in tensors:
        wanted = _ITEM_BYTES.get(tensor.dtype, 0) * math.prod(tensor.shape)
        if tensor.dtype in _ITEM_BYTES and tensor.nbytes != wanted:
            raise CheckpointError(
                f"tensor {tensor.name} has {tensor.nbytes} bytes, its shape needs {wanted}",
                where=str(path),
                fix=_FIX,
            )
    return sorted(tensors, key=lambda tensor: tensor.begin), prefix + text

"""Safetensors shards that grow tensor by tensor and survive an interruption.

The header of a safetensors file comes first and names every array, but sizes are known only after
encoding. So a shard is written as data behind a reserved header, beside a journal with one line per
finished tensor; the header goes in at the end. A killed run continues after the last tensor whose
bytes still match their hashes.
"""

import hashlib
import json
import os
from pathlib import Path

from pydantic import ValidationError

from specengine.weights.manifest import StoredArray, StoredShard, StoredTensor
from specengine.weights.source import DataFile, SourceTensor, octets_of

ALIGNMENT = 16
_ARRAYS = 6
"""Arrays of a tensor at most, the padding included."""
_ENTRY_BYTES = 200
"""Room for one header entry besides the tensor's name."""


class ShardWriter:
    """One shard under construction; use as a context manager.

    Args:
        path: the finished file.
        tensors: what it will hold, for the room its header needs.
        identity: what the data depends on; a journal of other inputs is not continued.
    """

    def __init__(self, path: Path, tensors: list[SourceTensor], identity: str) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.journal = journal_of(path)
        self.done: dict[str, StoredTensor] = {}
        """Tensors that are safe on disk."""
        names = sum(len(json.dumps(tensor.name)) + _ENTRY_BYTES for tensor in tensors)
        self._header_bytes = -(-(_ARRAYS * names + 4096) // 4096) * 4096
        self._identity = identity
        self._end = 0

    def __enter__(self) -> "ShardWriter":
        lines = self._recover()
        self._data = self.part.open("r+b" if self.part.exists() else "w+b")
        self._lines = self.journal.open("w", encoding="utf-8")
        self._note({"identity": self._identity})
        for line in lines:
            self._note(line)
        return self

    def __exit__(self, *failure: object) -> None:
        self._data.close()
        self._lines.close()

    def begin(self) -> None:
        """Start a tensor; what an unfinished one has left is dropped."""
        self._data.truncate(self._header_bytes + self._end)
        self._data.seek(0, os.SEEK_END)
        self._at = self._array = self._end
        self._digest = hashlib.sha256()

    def add(self, octets: memoryview) -> None:
        """Add bytes to the current array."""
        self._digest.update(octets)
        self._data.write(octets)
        self._at += len(octets)

    def end_array(self, dtype: str, shape: list[int]) -> StoredArray:
        """Close the current array; the next one begins."""
        array = StoredArray(
            dtype=dtype,
            shape=shape,
            begin=self._array,
            end=self._at,
            sha256=self._digest.hexdigest(),
        )
        self._array, self._digest = self._at, hashlib.sha256()
        return array

    def commit(self, name: str, tensor: StoredTensor) -> None:
        """Finish a tensor: from here on an interruption does not lose it."""
        filling = -self._at % ALIGNMENT
        if filling:
            self.add(memoryview(bytes(filling)))
            padding = self.end_array("U8", [filling])
            tensor = tensor.model_copy(update={"arrays": {**tensor.arrays, "padding": padding}})
        self._data.flush()
        self._end = self._at
        self.done[name] = tensor
        self._note({"name": name, "tensor": tensor.model_dump(mode="json")})

    def finish(self) -> StoredShard:
        """Write the header and give the file its name; the journal stays for the manifest."""
        header = self._header()
        self._data.truncate(len(header) + self._end)
        self._data.seek(0)
        self._data.write(header)
        self._data.flush()
        os.fsync(self._data.fileno())
        shard = StoredShard(
            bytes=len(header) + self._end,
            header_bytes=len(header),
            header_sha256=hashlib.sha256(header).hexdigest(),
        )
        self._note({"shard": shard.model_dump(mode="json")})
        self.part.replace(self.path)
        return shard

    def _header(self) -> bytes:
        entries = {
            stored_name(name, tensor.format, key): {
                "dtype": array.dtype,
                "shape": array.shape,
                "data_offsets": [array.begin, array.end],
            }
            for name, tensor in self.done.items()
            for key, array in tensor.arrays.items()
        }
        text = json.dumps(entries, separators=(",", ":")).encode()
        size = self._header_bytes - 8
        return size.to_bytes(8, "little") + text.ljust(size)

    def _recover(self) -> list[dict[str, object]]:
        """Journal lines of the tensors whose bytes are still there and right."""
        identity, lines, _ = read_journal(self.journal)
        kept: list[dict[str, object]] = []
        if identity != self._identity or not self.part.is_file():
            return kept
        size = self.part.stat().st_size
        with DataFile(self.part) as data:
            for name, tensor in lines.items():
                ends = [array.end for array in tensor.arrays.values()]
                intact = self._header_bytes + max(ends) <= size and all(
                    hash_range(data, self._header_bytes, array) == array.sha256
                    for array in tensor.arrays.values()
                )
                if not intact:
                    break
                self.done[name] = tensor
                self._end = max(ends)
                kept.append({"name": name, "tensor": tensor.model_dump(mode="json")})
        return kept

    def _note(self, line: dict[str, object]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()


def finished_shard(path: Path, identity: str) -> tuple[StoredShard, dict[str, StoredTensor]] | None:
    """A shard that an earlier run of the same encoding has finished, if there is one."""
    found, tensors, shard = read_journal(journal_of(path))
    whole = path.is_file() and shard is not None and path.stat().st_size == shard.bytes
    return (shard, tensors) if shard and whole and found == identity else None


def read_journal(path: Path) -> tuple[str | None, dict[str, StoredTensor], StoredShard | None]:
    """Identity, finished tensors and finished shard; a torn last line is left out."""
    identity, tensors, shard = None, {}, None
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            if "tensor" in entry:
                tensors[entry["name"]] = StoredTensor.model_validate(entry["tensor"])
            elif "shard" in entry:
                shard = StoredShard.model_validate(entry["shard"])
            else:
                identity = entry["identity"]
        except (ValueError, KeyError, ValidationError):
            break
    return identity, tensors, shard


def journal_of(path: Path) -> Path:
    return path.with_name(path.name + ".journal")


def stored_name(tensor: str, form: str, array: str) -> str:
    """Name of an array inside its shard."""
    return tensor if form == "plain" and array == "data" else f"{tensor}.{array}"


def hash_range(data: DataFile, start: int, array: StoredArray) -> str:
    """SHA-256 of an array's bytes in a file whose data begin at `start`."""
    digest = hashlib.sha256()
    for piece in data.pieces(start + array.begin, start + array.end):
        digest.update(octets_of(piece))
    return digest.hexdigest()

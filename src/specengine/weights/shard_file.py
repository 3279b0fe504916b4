"""Safetensors shards that grow tensor by tensor and survive an interruption.

The header of a safetensors file comes first and names every array, but sizes are known only after
encoding. So a shard is written as data behind a reserved header, beside a journal with one line per
finished tensor; the header goes in at the end. A killed run continues after the last tensor whose
bytes, here and in the original shard, still match their hashes; nothing else of an earlier run is
trusted.
"""

import hashlib
import json
import os
from pathlib import Path

from specengine.shard_header import SourceTensor
from specengine.weights.journal import Journal, Reading, journal_of, read_journal
from specengine.weights.manifest import StoredArray, StoredShard, StoredTensor
from specengine.weights.source import DataFile, octets_of
from specengine.weights.storage import storing, write_all

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
        identity: format and header that the data depends on; a journal of others is not continued.
        original: where the tensors are from.
    """

    def __init__(
        self, path: Path, tensors: list[SourceTensor], identity: str, original: DataFile
    ) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.done: dict[str, StoredTensor] = {}
        """Tensors that are safe on disk."""
        self._sources = {tensor.name: tensor for tensor in tensors}
        self._original = original
        names = sum(len(json.dumps(tensor.name)) + _ENTRY_BYTES for tensor in tensors)
        self._header_bytes = -(-(_ARRAYS * names + 4096) // 4096) * 4096
        self._identity = identity
        self._journal = Journal(journal_of(path))
        self._end = 0

    def __enter__(self) -> "ShardWriter":
        self._recover()
        with storing(self.part):
            self._data = self.part.open("r+b" if self.part.exists() else "w+b", buffering=0)
        self._journal.open(self._identity, self.done)
        return self

    def __exit__(self, *failure: object) -> None:
        self._data.close()
        self._journal.close()

    def begin(self) -> None:
        """Start a tensor; what an unfinished one has left is dropped."""
        with storing(self.part):
            self._data.truncate(self._header_bytes + self._end)
            self._data.seek(0, os.SEEK_END)
        self._at = self._array = self._end
        self._digest = hashlib.sha256()

    def add(self, octets: memoryview) -> None:
        """Add bytes to the current array."""
        self._digest.update(octets)
        with storing(self.part):
            write_all(self._data, octets)
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
        self._end = self._at
        self.done[name] = tensor
        self._journal.add_tensor(name, tensor)

    def finish(self) -> StoredShard:
        """Write the header and give the file its name; the journal stays for the manifest."""
        header = self._header()
        with storing(self.part):
            self._data.truncate(len(header) + self._end)
            self._data.seek(0)
            write_all(self._data, memoryview(header))
            os.fsync(self._data.fileno())
        shard = StoredShard(
            bytes=len(header) + self._end,
            header_bytes=len(header),
            header_sha256=hashlib.sha256(header).hexdigest(),
        )
        self._journal.add_shard(shard)
        with storing(self.path):
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

    def _recover(self) -> None:
        """Keep an earlier run's tensors up to the first whose bytes are not there and right."""
        reading = read_journal(journal_of(self.path))
        if reading.identity != self._identity or not self.part.is_file():
            return
        size = self.part.stat().st_size
        with DataFile(self.part) as data:
            for name, tensor in reading.tensors.items():
                arrays = sorted(tensor.arrays.values(), key=lambda array: (array.begin, array.end))
                source = self._sources.get(name)
                if (
                    source is None
                    or (tensor.dtype, tuple(tensor.shape)) != (source.dtype, source.shape)
                    or not _tile(arrays, self._end)
                    or self._header_bytes + arrays[-1].end > size
                    or not _intact(data, self._header_bytes, arrays)
                    or not _unchanged(self._original, source, tensor)
                ):
                    break
                self.done[name] = tensor
                self._end = arrays[-1].end


def finished_shard(
    path: Path, tensors: list[SourceTensor], identity: str, original: DataFile
) -> Reading | None:
    """What an earlier run of the same encoding has finished, if its bytes are all there and right,
    and the original's are the same as then.

    Another shard becomes an unfinished one, of which the tensors up to the first fault are kept.
    """
    reading = read_journal(journal_of(path))
    shard = reading.shard
    if shard is None or reading.identity != identity or not path.is_file():
        return None
    done = reading.tensors
    arrays = [array for tensor in reading.tensors.values() for array in tensor.arrays.values()]
    if path.stat().st_size == shard.bytes:
        with DataFile(path) as data:
            header = data.read(0, shard.header_bytes)
            right = hashlib.sha256(octets_of(header)).hexdigest() == shard.header_sha256
            if (
                right
                and _intact(data, shard.header_bytes, arrays)
                and done.keys() == {tensor.name for tensor in tensors}
                and all(_unchanged(original, source, done[source.name]) for source in tensors)
            ):
                return reading
    with storing(path):
        path.replace(path.with_name(path.name + ".part"))
    return None


def stored_name(tensor: str, form: str, array: str) -> str:
    """Name of an array inside its shard."""
    return tensor if form == "plain" and array == "data" else f"{tensor}.{array}"


def hash_range(data: DataFile, start: int, array: StoredArray) -> str:
    """SHA-256 of an array's bytes in a file whose data begin at `start`."""
    return _hash(data, start + array.begin, start + array.end)


def _hash(data: DataFile, begin: int, end: int) -> str:
    digest = hashlib.sha256()
    for piece in data.pieces(begin, end):
        digest.update(octets_of(piece))
    return digest.hexdigest()


def _tile(arrays: list[StoredArray], start: int) -> bool:
    """Whether sorted arrays follow each other from `start` without holes."""
    for array in arrays:
        if array.begin != start:
            return False
        start = array.end
    return True


def _intact(data: DataFile, start: int, arrays: list[StoredArray]) -> bool:
    return all(hash_range(data, start, array) == array.sha256 for array in arrays)


def _unchanged(original: DataFile, source: SourceTensor, tensor: StoredTensor) -> bool:
    """Whether the original has the weights that were encoded: another checkpoint of the same
    shapes may lie there by now."""
    return _hash(original, source.begin, source.end) == tensor.sha256

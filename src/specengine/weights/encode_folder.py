"""Encode a checkpoint folder, a stretch of a tensor at a time.

BF16 tensors of two or more dimensions are packed where that makes them smaller; all others are
copied. Memory does not grow with the checkpoint: a few stretches are held. An interrupted run
continues with the same call.
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specengine.errors import OptionError
from specengine.weights.encode_tensor import TensorEncoder
from specengine.weights.manifest import (
    MANIFEST,
    VERSION,
    Manifest,
    StoredShard,
    StoredTensor,
    write_manifest,
)
from specengine.weights.ordered import Workers
from specengine.weights.registry import format_named
from specengine.weights.shard_file import ShardWriter, finished_shard, journal_of
from specengine.weights.source import DataFile, SourceTensor, read_header, source_shards

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack")


@dataclass(frozen=True, slots=True)
class Progress:
    """A tensor is done. Bytes count the original."""

    tensor: str
    done_bytes: int
    total_bytes: int


Report = Callable[[Progress], None]


def encode_folder(
    source: Path, destination: Path, form: str, *, threads: int, report: Report
) -> Manifest:
    """Encode `source` into `destination`, which is made or continued.

    Raises:
        CheckpointError: the source is damaged.
        OptionError: unknown format, or a destination that is complete or is the source.
    """
    format_named(form)
    paths = source_shards(source)
    if (destination / MANIFEST).exists() or destination.resolve() == source.resolve():
        raise OptionError(
            "holds a checkpoint already", where=str(destination), fix="name a new folder"
        )
    destination.mkdir(parents=True, exist_ok=True)
    run = _Run(form, [read_header(path) for path in paths], report)
    with Workers(threads) as workers:
        for index, path in enumerate(paths):
            name = f"weights-{index + 1:05d}-of-{len(paths):05d}.safetensors"
            run.shard(index, path, destination / name, workers)
    _copy_other_files(source, destination)
    manifest = Manifest(
        version=VERSION,
        format=form,
        source_sha256=hashlib.sha256(b"".join(header for _, header in run.headers)).hexdigest(),
        shards=run.shards,
        tensors=run.tensors,
    )
    write_manifest(destination, manifest)
    for name in run.shards:
        journal_of(destination / name).unlink()
    return manifest


class _Run:
    """What is done so far."""

    def __init__(
        self, form: str, headers: list[tuple[list[SourceTensor], bytes]], report: Report
    ) -> None:
        self.form = form
        self.headers = headers
        self.report = report
        self.shards: dict[str, StoredShard] = {}
        self.tensors: dict[str, StoredTensor] = {}
        self._sizes = {item.name: item.nbytes for tensors, _ in headers for item in tensors}
        self._done = 0

    def shard(self, index: int, source: Path, out: Path, workers: Workers) -> None:
        """Encode one shard, or take it over from an earlier run."""
        tensors, header = self.headers[index]
        identity = hashlib.sha256(f"{VERSION} {self.form} ".encode() + header).hexdigest()
        earlier = finished_shard(out, identity)
        if earlier is not None:
            self.shards[out.name], finished = earlier
            self._add(finished)
            return
        with DataFile(source) as data, ShardWriter(out, tensors, identity) as writer:
            self._add(writer.done)
            encoder = TensorEncoder(self.form, data, writer, workers)
            for tensor in encoder.order([item for item in tensors if item.name not in writer.done]):
                encoder.encode(tensor)
                self._add({tensor.name: writer.done[tensor.name]})
            self.shards[out.name] = writer.finish()

    def _add(self, tensors: dict[str, StoredTensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors[name] = tensor
            self._done += self._sizes[name]
            self.report(Progress(name, self._done, sum(self._sizes.values())))


def _copy_other_files(source: Path, destination: Path) -> None:
    """Configuration, tokenizer and licence: whatever is no weight file."""
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if path.is_file() and not index and path.suffix not in _WEIGHTS:
            shutil.copyfile(path, destination / path.name)

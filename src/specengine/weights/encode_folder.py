"""Encode a checkpoint folder, a stretch of a tensor at a time.

BF16 tensors of two or more dimensions are packed where that makes them smaller; all others are
copied. Memory does not grow with the checkpoint: a few stretches are held. An interrupted run
continues with the same call.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specengine.errors import CheckpointError, OptionError
from specengine.shard_header import SourceTensor
from specengine.shards import shard_headers
from specengine.weights.encode_tensor import TensorEncoder
from specengine.weights.journal import journal_of
from specengine.weights.manifest import (
    ARRAYS,
    LISTS,
    MANIFEST,
    PADDING,
    VERSION,
    Manifest,
    StoredShard,
    StoredTensor,
    write_manifest,
)
from specengine.weights.ordered import Workers
from specengine.weights.other_files import check_files, copy_files
from specengine.weights.registry import format_named
from specengine.weights.shard_file import ShardWriter, finished_shard
from specengine.weights.source import DataFile
from specengine.weights.storage import storing


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
        OptionError: unknown format, no thread, or a destination that is complete, is the source, or
            is being written by another process.
        EngineError: the disk is full; finished tensors are kept.
    """
    format_named(form)
    pool = Workers(threads)
    headers = shard_headers(source)
    _check_names(headers)
    names = [f"weights-{i + 1:05d}-of-{len(headers):05d}.safetensors" for i in range(len(headers))]
    check_files(source, names)
    complete = (destination / MANIFEST).exists()
    if complete or destination.resolve() == source.resolve():
        if complete:
            # A run that was killed at its very end has left them.
            _remove_journals(destination, names)
        raise OptionError(
            "holds a checkpoint already", where=str(destination), fix="name a new folder"
        )
    with storing(destination):
        destination.mkdir(parents=True, exist_ok=True)
    run = _Run(form, list(headers.values()), report)
    with _alone(destination):
        with pool as workers:
            for index, (path, name) in enumerate(zip(headers, names, strict=True)):
                run.shard(index, path, destination / name, workers)
        manifest = Manifest(
            version=VERSION,
            format=form,
            source_sha256=hashlib.sha256(b"".join(header for _, header in run.headers)).hexdigest(),
            shards=run.shards,
            tensors=run.tensors,
            files=copy_files(source, destination),
        )
        write_manifest(destination, manifest)
        _remove_journals(destination, names)
    return manifest


def _remove_journals(folder: Path, shards: list[str]) -> None:
    for name in shards:
        journal_of(folder / name).unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second process from writing the same shards.

    Raises:
        OptionError: there is one.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OptionError(
                "is being written by another process",
                where=str(folder),
                fix="wait for it, or name another folder",
            ) from error
        yield
    finally:
        os.close(descriptor)


def _check_names(headers: dict[Path, tuple[list[SourceTensor], bytes]]) -> None:
    """Refuse tensors whose names would collide with those that are written.

    Raises:
        CheckpointError: there are such.
    """
    for path, (tensors, _) in headers.items():
        names = {tensor.name for tensor in tensors}
        for name in sorted(names):
            for key in (*ARRAYS, *LISTS, *PADDING):
                if f"{name}.{key}" in names:
                    raise CheckpointError(
                        f"holds both {name!r:.80} and its '.{key}', a name that encoding needs",
                        where=str(path),
                        fix="rename one of them",
                    )


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
        with DataFile(source) as data:
            earlier = finished_shard(out, tensors, identity, data)
            if earlier is not None:
                assert earlier.shard is not None
                self.shards[out.name] = earlier.shard
                self._add(earlier.tensors)
                return
            with ShardWriter(out, tensors, identity, data) as writer:
                self._add(writer.done)
                encoder = TensorEncoder(self.form, data, writer, workers)
                left = [item for item in tensors if item.name not in writer.done]
                for name in encoder.encode(left):
                    self._add({name: writer.done[name]})
                self.shards[out.name] = writer.finish()

    def _add(self, tensors: dict[str, StoredTensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors[name] = tensor
            self._done += self._sizes[name]
            self.report(Progress(name, self._done, sum(self._sizes.values())))

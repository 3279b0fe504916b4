"""What lies beside the weights of a checkpoint: configuration, tokenizer, licence."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from specengine.errors import CheckpointError
from specengine.weights.journal import journal_of
from specengine.weights.manifest import MANIFEST, StoredFile
from specengine.weights.source import DataFile, octets_of
from specengine.weights.storage import storing, write_all

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack")


def check_files(source: Path, shards: list[str]) -> None:
    """Refuse files that cannot be copied under their names.

    Args:
        shards: names of the new shards.

    Raises:
        CheckpointError: there are such.
    """
    taken = {MANIFEST, MANIFEST + ".part"}
    for shard in shards:
        journal = journal_of(Path(shard)).name
        taken |= {shard + ".part", journal, journal + ".new"}
    for path in _others(source):
        if path.name in taken:
            what = f"holds a {path.name}, as encoded folders do"
            fix = "remove it, or give the original checkpoint"
            raise CheckpointError(what, where=str(source), fix=fix)
        if not path.name.isprintable():
            what = f"holds a file whose name cannot be shown, {path.name!a:.80}"
            raise CheckpointError(what, where=str(source), fix="rename or remove it")


def copy_files(source: Path, destination: Path) -> dict[str, StoredFile]:
    """Copy whatever is no weight file.

    Raises:
        EngineError: the disk is full.
    """
    return {path.name: _copy(path, destination / path.name) for path in _others(source)}


def _others(source: Path) -> Iterator[Path]:
    for path in sorted(source.iterdir()):
        index = path.name.endswith(".index.json")
        if path.is_file() and not index and path.suffix not in _WEIGHTS:
            yield path


def _copy(path: Path, target: Path) -> StoredFile:
    digest = hashlib.sha256()
    part = target.with_name(target.name + ".part")
    with DataFile(path) as data, storing(part):
        size = path.stat().st_size
        with part.open("wb", buffering=0) as file:
            for octets in data.pieces(0, size):
                digest.update(octets_of(octets))
                write_all(file, octets_of(octets))
        part.replace(target)
    return StoredFile(bytes=size, sha256=digest.hexdigest())

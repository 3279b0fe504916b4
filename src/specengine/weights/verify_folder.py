"""Whether an encoded folder still holds its checkpoint: every byte, and every original weight."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from specengine.errors import CheckpointError
from specengine.weights.checks import check_lists, decode_checked
from specengine.weights.encode_folder import Progress, Report
from specengine.weights.manifest import Manifest, StoredFile, StoredTensor, read_manifest
from specengine.weights.ordered import Workers
from specengine.weights.packed import Packed
from specengine.weights.reader import StoredMatrix
from specengine.weights.shard_file import hash_range
from specengine.weights.source import DataFile, octets_of


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where: a shard, a tensor or one of its arrays."""

    where: str
    what: str


def verify_folder(folder: Path, *, threads: int, report: Report) -> list[Fault]:
    """Hash every stored byte, decode every tensor and hash what comes out.

    Returns:
        All faults; none for an intact folder.

    Raises:
        CheckpointError: the manifest is missing or damaged, so that nothing can be verified.
    """
    manifest = read_manifest(folder)
    faults: list[Fault] = []
    for name, file in manifest.files.items():
        faults += _file_faults(folder / name, file)
    total = sum(tensor.nbytes for tensor in manifest.tensors.values())
    done = 0
    with Workers(threads) as workers:
        for shard in manifest.shards:
            tensors = {n: t for n, t in manifest.tensors.items() if t.shard == shard}
            broken = list(_shard_faults(folder, shard, manifest))
            faults += broken
            if not broken:
                with DataFile(folder / shard) as data:
                    start = manifest.shards[shard].header_bytes
                    for name, tensor in tensors.items():
                        faults += _tensor_faults(name, tensor, data, start, workers)
                        done += tensor.nbytes
                        report(Progress(name, done, total))
            else:
                done += sum(tensor.nbytes for tensor in tensors.values())
    return faults


def _file_faults(path: Path, stored: StoredFile) -> list[Fault]:
    """Of a configuration, tokenizer or other file beside the shards."""
    if not path.is_file():
        return [Fault(path.name, "is missing")]
    digest = hashlib.sha256()
    with DataFile(path) as data:
        for octets in data.pieces(0, path.stat().st_size):
            digest.update(octets_of(octets))
    return [] if digest.hexdigest() == stored.sha256 else [Fault(path.name, "was changed")]


def _shard_faults(folder: Path, shard: str, manifest: Manifest) -> Iterator[Fault]:
    path, stored = folder / shard, manifest.shards[shard]
    if not path.is_file():
        yield Fault(shard, "is missing")
        return
    size = path.stat().st_size
    if size != stored.bytes:
        kind = "truncated" if size < stored.bytes else "longer than it was"
        yield Fault(shard, f"is {kind}: {size} bytes, not {stored.bytes}")
        return
    with DataFile(path) as data:
        header = data.read(0, stored.header_bytes)
    if hashlib.sha256(octets_of(header)).hexdigest() != stored.header_sha256:
        yield Fault(shard, "has a damaged header")


def _tensor_faults(
    name: str, tensor: StoredTensor, data: DataFile, start: int, workers: Workers
) -> list[Fault]:
    faults = [
        Fault(f"{tensor.shard}: {name}: {key}", "does not match its hash")
        for key, array in tensor.arrays.items()
        if key != "records" and hash_range(data, start, array) != array.sha256
    ]
    if tensor.format == "plain" or faults:
        records = tensor.arrays.get("records")
        if records is not None and hash_range(data, start, records) != records.sha256:
            faults.append(Fault(f"{tensor.shard}: {name}: records", "does not match its hash"))
        return faults or _wrong_hash(name, tensor, tensor.arrays["data"].sha256)
    try:
        return _packed_faults(name, tensor, data, start, workers)
    except CheckpointError as error:
        return [Fault(f"{tensor.shard}: {name}", error.what)]


def _packed_faults(
    name: str, tensor: StoredTensor, data: DataFile, start: int, workers: Workers
) -> list[Fault]:
    """Decode beside hashing, so that records are read once."""
    stored = StoredMatrix(name, tensor, data, start)
    records, original = hashlib.sha256(), hashlib.sha256()
    unreadable: CheckpointError | None = None

    def work(place: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor | CheckpointError]:
        octets, part = stored.stretch(*place)
        try:
            return octets, _decoded(part, name)
        except CheckpointError as error:
            return octets, error

    for octets, decoded in workers.map(work, stored.stretches()):
        records.update(octets_of(octets))
        if isinstance(decoded, CheckpointError):
            unreadable = unreadable or decoded
        else:
            original.update(octets_of(decoded))
    if records.hexdigest() != tensor.arrays["records"].sha256:
        return [Fault(f"{tensor.shard}: {name}: records", "does not match its hash")]
    if unreadable is not None:
        raise unreadable
    return _wrong_hash(name, tensor, original.hexdigest())


def _decoded(part: Packed, name: str) -> torch.Tensor:
    check_lists(part, name)
    return decode_checked(part, name).contiguous()


def _wrong_hash(name: str, tensor: StoredTensor, found: str) -> list[Fault]:
    if found == tensor.sha256:
        return []
    return [Fault(f"{tensor.shard}: {name}", "decodes to other weights than the original's hash")]

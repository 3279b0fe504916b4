"""Manifests that somebody has altered and hashed again: one line each, before memory is taken."""

import hashlib
import json
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from specengine.errors import CheckpointError
from specengine.weights.encode_folder import encode_folder
from specengine.weights.inspect_folder import inspect_folder
from specengine.weights.layout import TILE
from specengine.weights.manifest import MANIFEST
from specengine.weights.reader import EncodedFolder
from specengine.weights.verify_folder import verify_folder
from specengine.weights.w11s import DENSE_BYTES

Natural = Callable[..., torch.Tensor]
Table = dict[str, Any]
SHARD = "weights-00001-of-00001.safetensors"
HUGE = 1 << 50


@pytest.fixture
def folder(tmp_path: Path, natural: Natural) -> Path:
    (tmp_path / "source").mkdir()
    tensors = {"bias": torch.arange(6.0), "up": natural(TILE, 64), "wide": natural(TILE, 128, 1)}
    tensors["wide"][::9, 3] = 300.0
    save_file(tensors, tmp_path / "source" / "model.safetensors")
    encode_folder(tmp_path / "source", tmp_path / "out", "w11s", threads=1, report=lambda _: None)
    return tmp_path / "out"


def _hashed(table: Table) -> Table:
    body = {key: value for key, value in table.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {"sha256": digest, **body}


def _set(path: str, value: object) -> Callable[[Table], None]:
    def forge(table: Table) -> None:
        *parents, last = path.split("/")
        for key in parents:
            table = table[key]
        table[last] = value

    return forge


def _rename(old: str, new: str) -> Callable[[Table], None]:
    def forge(table: Table) -> None:
        table["tensors"][new] = table["tensors"].pop(old)

    return forge


def _file(name: str) -> Callable[[Table], None]:
    def forge(table: Table) -> None:
        table["files"][name] = {"bytes": 0, "sha256": "0" * 64}

    return forge


def _share(table: Table) -> None:
    table["tensors"]["up2"] = table["tensors"]["up"]


def _lose(table: Table) -> None:
    del table["tensors"]["bias"]


def _huge(table: Table) -> None:
    """A plain tensor of a petabyte that agrees with its array and its shard."""
    bias = table["tensors"]["bias"]
    data, shard = bias["arrays"]["data"], table["shards"][SHARD]
    bias["arrays"] = {"data": data}
    bias["shape"] = data["shape"] = [HUGE]
    data["end"] = data["begin"] + 4 * HUGE
    shard["bytes"] = shard["header_bytes"] + data["end"]


FORGERIES: dict[str, tuple[Callable[[Table], None], str]] = {
    "unknown key": (_set("extra", 1), "extra: Extra inputs"),
    "unknown key of a tensor": (_set("tensors/bias/device", "cuda"), "device: Extra inputs"),
    "unknown key of an array": (_set("tensors/up/arrays/tops/x", 0), "tops.x: Extra inputs"),
    "unknown key of a shard": (_set(f"shards/{SHARD}/url", "x"), "url: Extra inputs"),
    "unknown fact": (_set("tensors/up/facts/more", 1.0), "what its size comes from"),
    "unknown array": (_set("tensors/up/arrays/more", None), "more"),
    "unknown format": (_set("tensors/up/format", "w13"), "pattern"),
    "negative size": (_set("tensors/bias/shape", [-6]), "greater than or equal to 0"),
    "negative size of an array": (_set("tensors/up/arrays/tops/shape", [-128]), "greater than"),
    "more than 63 bits": (_set("tensors/up/shape", [1 << 63, 64]), "less than or equal"),
    "a fraction": (_set("tensors/up/shape", [128.0, 64]), "valid integer"),
    "a truth value": (_set("tensors/bias/shape", [True]), "valid integer"),
    "too many dimensions": (_set("tensors/up/shape", [1] * 65 + [128, 64]), "at most 64"),
    "no number": (_set("tensors/up/facts/total", float("nan")), "what its size comes from"),
    "outside the folder": (_file("../passwd"), "no file name"),
    "an absolute file": (_file("/etc/passwd"), "no file name"),
    "parent folder": (_set("tensors/up/shard", "../model.safetensors"), "unknown shard"),
    "absolute path": (_set("tensors/up/shard", "/etc/passwd"), "unknown shard"),
    "line break in a name": (_rename("bias", "a\nb"), "cannot be shown"),
    "line break in a key": (_set("x\ny", 1), r"x\\ny: Extra inputs"),
    "line break in a reason": (_set("tensors/bias/facts/reason", "a\nb"), "what its size"),
    "line break in a cause": (_set("tensors/up/facts/escaped/a\nb", 1), "what its size"),
    "line break in a file": (_file("a\nb"), "cannot be shown"),
    "line break in the version": (_set("version", "2\n3"), "version"),
    "a tensor twice": (_share, "does not begin where the last one ends"),
    "bytes of no tensor": (_lose, "does not begin|belong to no tensor"),
}


def _refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        EncodedFolder(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert MANIFEST in message
    for read in (inspect_folder, lambda at: verify_folder(at, threads=1, report=lambda _: None)):
        with pytest.raises(CheckpointError):
            read(folder)
    return message


@pytest.mark.parametrize("kind", FORGERIES)
def test_forgeries_are_one_line(kind: str, folder: Path) -> None:
    forge, message = FORGERIES[kind]
    path = folder / MANIFEST
    table = json.loads(path.read_text())
    forge(table)
    path.write_text(json.dumps(_hashed(table)))
    found = _refused(folder)
    assert re.search(message, found), found


@pytest.mark.parametrize("key", ["bias", "shards", "end"])
def test_keys_that_appear_twice_are_refused(key: str, folder: Path) -> None:
    """Readers differ in which of the two they take, and the hash is that of one."""
    path = folder / MANIFEST
    text = path.read_text()
    assert f'"{key}": ' in text
    path.write_text(text.replace(f'"{key}": ', f'"{key}": 7, "{key}": ', 1))
    assert f"'{key}' appears twice" in _refused(folder)


@contextmanager
def _little_memory() -> Iterator[None]:
    """Little more than what is in use can be reserved."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_sizes_beyond_the_file_take_no_memory(folder: Path) -> None:
    path = folder / MANIFEST
    table = json.loads(path.read_text())
    _huge(table)
    path.write_text(json.dumps(_hashed(table)))
    with _little_memory():
        with pytest.raises(CheckpointError, match="has no bytes"):
            EncodedFolder(folder).tensor("bias")
        (fault,) = verify_folder(folder, threads=1, report=lambda _: None)
    assert fault.what.startswith("is truncated")


def _forge_array(
    folder: Path, tensor: str, array: str, change: Callable[[bytearray], None]
) -> None:
    """Change an array's bytes and every hash that speaks of them."""
    path, shard = folder / MANIFEST, folder / SHARD
    table = json.loads(path.read_text())
    found = table["tensors"][tensor]["arrays"][array]
    start = table["shards"][SHARD]["header_bytes"]
    octets, place = (
        bytearray(shard.read_bytes()),
        slice(start + found["begin"], start + found["end"]),
    )
    part = octets[place]
    change(part)
    octets[place] = part
    shard.write_bytes(octets)
    found["sha256"] = hashlib.sha256(part).hexdigest()
    path.write_text(json.dumps(_hashed(table)))


def _long_lists(records: bytearray) -> None:
    """Lists of w11s that claim more weights than the record has room for."""
    records[DENSE_BYTES : DENSE_BYTES + 32] = bytes([255]) * 32


def _set_place(place: int) -> Callable[[bytearray], None]:
    """Another place of the first escape in its record."""

    def change(escapes: bytearray) -> None:
        escapes[:2] = place.to_bytes(2, "little")

    return change


@pytest.mark.parametrize(
    ("tensor", "array", "change", "message"),
    [
        ("up", "records", _long_lists, "counts miss its size"),
        ("wide", "escapes", _set_place(TILE * 64), "an escape lies outside its record"),
        ("wide", "escapes", _set_place(65535), "an escape lies outside its record"),
        ("wide", "escapes", _set_place(TILE * 64 - 1), "escapes are not in order"),
    ],
)
def test_forged_arrays_with_right_hashes_are_found(
    tensor: str, array: str, change: Callable[[bytearray], None], message: str, folder: Path
) -> None:
    _forge_array(folder, tensor, array, change)
    with pytest.raises(CheckpointError, match=message):
        EncodedFolder(folder).tensor(tensor)
    (fault,) = verify_folder(folder, threads=1, report=lambda _: None)
    assert fault.where == f"{SHARD}: {tensor}"
    assert message in fault.what

"""Encoded folders: streaming, resuming, and finding damage."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specengine.errors import CheckpointError, OptionError
from specengine.weights import FORMATS, describe, encode
from specengine.weights.encode_folder import Progress, encode_folder
from specengine.weights.inspect_folder import inspect_folder
from specengine.weights.manifest import MANIFEST, Manifest, read_manifest
from specengine.weights.reader import EncodedFolder
from specengine.weights.verify_folder import verify_folder

Natural = Callable[..., torch.Tensor]
SHARD = "weights-00001-of-00001.safetensors"


@pytest.fixture
def tensors(natural: Natural) -> dict[str, torch.Tensor]:
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    return {
        "embed.weight": natural(1000, 192, 1),
        "layer.q.weight": natural(192, 128, 2),
        "layer.k.weight": natural(64, 128, 3),
        "experts.weight": natural(3 * 128, 64, 4).view(3, 128, 64),
        "conv.weight": natural(256, 4, 5).view(256, 1, 4),
        "norm.weight": natural(1, 77, 6)[0],
        "bias": torch.randn(5),
        "steps": torch.tensor([3], dtype=torch.int64),
        "scalar": torch.tensor(2.5),
        "patterns": patterns.view(256, 256),
        "noise": patterns[torch.randperm(2**16)].view(512, 128),
        "odd.weight": natural(300, 250, 7),
    }


@pytest.fixture
def source(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    return folder


def _encode(source: Path, destination: Path, form: str = "w12", threads: int = 2) -> Manifest:
    return encode_folder(source, destination, form, threads=threads, report=lambda step: None)


def _faults(folder: Path) -> list[str]:
    faults = verify_folder(folder, threads=2, report=lambda step: None)
    return [f"{fault.where} {fault.what}" for fault in faults]


@pytest.mark.parametrize("form", FORMATS)
def test_every_tensor_comes_back(
    form: str, source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    steps: list[Progress] = []
    encode_folder(source, tmp_path / "out", form, threads=2, report=steps.append)
    stored = EncodedFolder(tmp_path / "out")
    assert stored.manifest.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = stored.tensor(name)
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert back.flatten().view(torch.uint8).equal(tensor.flatten().view(torch.uint8)), name
    assert _faults(tmp_path / "out") == []
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        SHARD,
        MANIFEST,
    ]
    assert steps[-1].done_bytes == steps[-1].total_bytes
    formats = {name: tensor.format for name, tensor in stored.manifest.tensors.items()}
    assert formats["embed.weight"] == formats["layer.q.weight"] == form
    assert formats["noise"] == formats["conv.weight"] == formats["bias"] == "plain"


@pytest.mark.parametrize("form", FORMATS)
def test_disk_form_restores_the_very_arrays(
    form: str, source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    """1000, 192, 64 and 300 channels end inside a tile, before and after its middle."""
    _encode(source, tmp_path / "out", form)
    stored = EncodedFolder(tmp_path / "out")
    for name in ("embed.weight", "layer.q.weight", "layer.k.weight", "odd.weight"):
        packed = encode(tensors[name], form)
        for key, array in packed.arrays().items():
            assert torch.equal(stored.packed(name).arrays()[key], array), (name, key)


def test_shards_are_valid_safetensors(source: Path, tmp_path: Path) -> None:
    _encode(source, tmp_path / "out", "w11s")
    with safe_open(tmp_path / "out" / SHARD, "pt") as file:
        names = set(file.keys())
        assert {"layer.q.weight.records", "layer.q.weight.tops", "bias"} <= names
        assert torch.equal(file.get_tensor("steps"), torch.tensor([3]))


def test_shards_of_an_index_are_kept_apart(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    names = sorted(tensors)
    table = {}
    for index, part in enumerate((names[:5], names[5:])):
        file = f"model-{index}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        table |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    manifest = _encode(folder, tmp_path / "out")
    assert len(manifest.shards) == 2
    assert manifest.tensors.keys() == tensors.keys()
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
    assert _faults(tmp_path / "out") == []


class _Killed(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 4, 11])
def test_interrupted_runs_resume(after: int, source: Path, tmp_path: Path) -> None:
    """Whatever was done when the run died is kept; the result is that of an unbroken run."""
    _encode(source, tmp_path / "whole")
    seen: list[str] = []

    def die(step: Progress) -> None:
        seen.append(step.tensor)
        if len(seen) > after:
            raise _Killed

    with pytest.raises(_Killed):
        encode_folder(source, tmp_path / "out", "w12", threads=2, report=die)
    with pytest.raises(CheckpointError, match="finish it with the same encode command"):
        read_manifest(tmp_path / "out")
    part = tmp_path / "out" / (SHARD + ".part")
    with part.open("ab") as file:
        file.write(b"torn")
    before = part.read_bytes()
    _encode(source, tmp_path / "out")
    for name in (SHARD, MANIFEST):
        ours, theirs = ((tmp_path / run / name).read_bytes() for run in ("out", "whole"))
        assert ours == theirs
    assert len(before) > 4
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_damaged_leftovers_are_encoded_again(source: Path, tmp_path: Path) -> None:
    _encode(source, tmp_path / "whole")

    def die(step: Progress) -> None:
        if step.tensor == "layer.k.weight":
            raise _Killed

    with pytest.raises(_Killed):
        encode_folder(source, tmp_path / "out", "w12", threads=1, report=die)
    part = tmp_path / "out" / (SHARD + ".part")
    octets = bytearray(part.read_bytes())
    octets[len(octets) // 2] ^= 1
    part.write_bytes(octets)
    journal = tmp_path / "out" / (SHARD + ".journal")
    journal.write_text(journal.read_text() + '{"name": "torn')
    _encode(source, tmp_path / "out")
    assert (tmp_path / "out" / SHARD).read_bytes() == (tmp_path / "whole" / SHARD).read_bytes()


def test_another_format_does_not_continue_a_run(source: Path, tmp_path: Path) -> None:
    def die(step: Progress) -> None:
        raise _Killed

    with pytest.raises(_Killed):
        encode_folder(source, tmp_path / "out", "w12", threads=1, report=die)
    _encode(source, tmp_path / "out", "w11s")
    assert read_manifest(tmp_path / "out").tensors["embed.weight"].format == "w11s"
    assert _faults(tmp_path / "out") == []


def test_every_flipped_byte_is_found_and_named(source: Path, tmp_path: Path) -> None:
    manifest = _encode(source, tmp_path / "out", "w11s")
    path = tmp_path / "out" / SHARD
    whole = path.read_bytes()
    start = manifest.shards[SHARD].header_bytes
    for name, tensor in manifest.tensors.items():
        for key, array in tensor.arrays.items():
            if array.end == array.begin:
                continue
            for at in {array.begin, (array.begin + array.end) // 2, array.end - 1}:
                octets = bytearray(whole)
                octets[start + at] ^= 0x10
                path.write_bytes(octets)
                (fault,) = _faults(tmp_path / "out")
                assert fault == f"{SHARD}: {name}: {key} does not match its hash"
    octets = bytearray(whole)
    octets[start - 1] ^= 0x01
    path.write_bytes(octets)
    assert _faults(tmp_path / "out") == [f"{SHARD} has a damaged header"]


def test_missing_and_truncated_shards_are_named(source: Path, tmp_path: Path) -> None:
    _encode(source, tmp_path / "out")
    path = tmp_path / "out" / SHARD
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert _faults(tmp_path / "out")[0].startswith(f"{SHARD} is truncated: {len(whole) - 1} bytes")
    path.write_bytes(whole + b"0")
    assert _faults(tmp_path / "out")[0].startswith(f"{SHARD} is longer")
    path.unlink()
    assert _faults(tmp_path / "out") == [f"{SHARD} is missing"]


def test_wrong_original_hash_is_named(source: Path, tmp_path: Path) -> None:
    """A manifest that is consistent in itself, but whose tensor was another one."""
    from specengine.weights.manifest import write_manifest

    manifest = _encode(source, tmp_path / "out")
    wrong = manifest.tensors["embed.weight"].model_copy(update={"sha256": "0" * 64})
    forged = {**manifest.tensors, "embed.weight": wrong}
    write_manifest(tmp_path / "out", manifest.model_copy(update={"tensors": forged}))
    (fault,) = _faults(tmp_path / "out")
    assert "embed.weight decodes to other weights" in fault


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"w12"', '"w11"', 1), "its own hash"),
        (lambda text: text[:-40], "not valid JSON"),
        (lambda text: text.replace('"version": 2', '"version": 3'), "version 3"),
    ],
)
def test_damaged_manifests_are_refused(
    change: Callable[[str], str], message: str, source: Path, tmp_path: Path
) -> None:
    _encode(source, tmp_path / "out")
    path = tmp_path / "out" / MANIFEST
    path.write_text(change(path.read_text()))
    with pytest.raises(CheckpointError, match=message):
        read_manifest(tmp_path / "out")


def _forge(manifest: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split("/")
    for key in parents:
        manifest = manifest[key]
    manifest[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tensors/bias/shard", "../source/model.safetensors", "unknown shard"),
        ("shards/..", {"bytes": 9, "header_bytes": 9, "header_sha256": "0" * 64}, "no file name"),
        ("files/a~b", {"bytes": 9, "sha256": "0" * 64}, "no file name"),
        ("tensors/bias/arrays/data/end", 2**40, "not what its shape needs"),
        ("tensors/bias/arrays/data/begin", -20, "greater than or equal to 0"),
        ("tensors/bias/arrays", {}, "does not have the arrays data"),
        ("tensors/bias/shape", [6], "stored in another shape"),
        ("tensors/bias/facts", {}, "what its size comes from"),
        ("tensors/bias/format", "w12", "no BF16 matrix"),
        ("tensors/embed.weight/facts/total", "12", "what its size comes from"),
        ("tensors/embed.weight/shape", [1 << 62, 192], "what its size|entries"),
        ("tensors/embed.weight/shape", [0, 192], "no BF16 matrix"),
        (f"shards/{SHARD}/bytes", 100, "ends outside its shard"),
    ],
)
def test_forged_manifests_are_refused(
    path: str, value: object, message: str, source: Path, tmp_path: Path
) -> None:
    """With the right hash of itself, so that only its contents give it away."""
    _encode(source, tmp_path / "out")
    file = tmp_path / "out" / MANIFEST
    table = json.loads(file.read_text())
    table.pop("sha256")
    _forge(table, path, value)
    text = json.dumps(table, sort_keys=True).replace("a~b", "a/b")
    digest = hashlib.sha256(json.dumps(json.loads(text), sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({"sha256": digest, **json.loads(text)}))
    with pytest.raises(CheckpointError, match=message) as caught:
        EncodedFolder(tmp_path / "out").packed("embed.weight")
    assert "\n" not in str(caught.value)


def test_complete_folders_and_the_source_are_not_overwritten(source: Path, tmp_path: Path) -> None:
    _encode(source, tmp_path / "out")
    for destination in (tmp_path / "out", source):
        with pytest.raises(OptionError, match=r"holds a checkpoint already.*name a new folder"):
            _encode(source, destination)
    assert set(load_file(source / "model.safetensors")) == set(
        read_manifest(tmp_path / "out").tensors
    )


def test_truncated_sources_are_refused(source: Path, tmp_path: Path) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="truncated"):
        _encode(source, tmp_path / "out")


def test_shapes_that_contradict_their_bytes_are_refused(source: Path, tmp_path: Path) -> None:
    path = source / "model.safetensors"
    octets = path.read_bytes()
    path.write_bytes(octets.replace(b"[1000,192]", b"[1000,191]"))
    with pytest.raises(CheckpointError, match=r"'embed\.weight' has 384000 bytes"):
        _encode(source, tmp_path / "out")


@pytest.mark.parametrize("form", FORMATS)
def test_inspection_says_what_bits_are_for(form: str, source: Path, tmp_path: Path) -> None:
    _encode(source, tmp_path / "out", form)
    report = inspect_folder(tmp_path / "out")
    rows = {row["name"]: row for row in report["tensors"]}
    for row in rows.values():
        facts = row["facts"]
        if row["format"] == "plain":
            assert row["why"].startswith("as it was: ")
            continue
        parts = [facts[key] for key in ("in_place", "lists", "escapes", "index", "padding")]
        assert facts["total"] == pytest.approx(sum(parts))
    assert rows["noise"]["why"] == "as it was: packing would not make it smaller"
    assert rows["bias"]["why"] == "as it was: it is F32, not BF16"
    assert "padding" in rows["odd.weight"]["why"]
    assert rows["layer.q.weight"]["facts"]["padding"] == 0


def test_stored_form_is_no_larger_than_the_kernels(source: Path, tmp_path: Path) -> None:
    manifest = _encode(source, tmp_path / "out")
    stored = EncodedFolder(tmp_path / "out")
    for name, tensor in manifest.tensors.items():
        if tensor.format != "plain":
            in_memory = describe(stored.packed(name))
            assert tensor.facts["total"] <= in_memory.total
            assert tensor.facts["escaped"] == in_memory.escaped


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path, natural: Natural) -> None:
    """Peaks of two processes: a tensor of 32 MiB, all of it in work at once, and one of 128 MiB."""
    folders = []
    for rows in (4096, 16384):
        folders += [str(tmp_path / str(rows)), str(tmp_path / f"out{rows}")]
        Path(folders[-2]).mkdir()
        weights = natural(128, 4096).repeat(rows // 128, 1)
        save_file({"w": weights}, Path(folders[-2]) / "model.safetensors")
    command = [sys.executable, "-c", MEASURED, *folders]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    small, large = map(int, done.stdout.split())
    assert 1024 * (large - small) < (16384 - 4096) * 4096 * 2 // 2


MEASURED = """
import os, sys
import specengine.weights.encode_folder
from specengine.weights.__main__ import main

peaks = []
for at in (1, 3):
    # Both start from what the imports hold.
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        os._exit(main(["encode", *sys.argv[at : at + 2], "--threads", "1"]))
    _, status, used = os.wait4(child, 0)
    assert status == 0
    peaks.append(used.ru_maxrss)
print(*peaks)
"""

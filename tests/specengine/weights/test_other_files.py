"""Files beside the weights are copied, or refused before anything is written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specengine.errors import CheckpointError
from specengine.weights.encode_folder import encode_folder
from specengine.weights.manifest import MANIFEST
from specengine.weights.verify_folder import verify_folder

SHARD = "weights-00001-of-00001.safetensors"


@pytest.fixture
def source(tmp_path: Path, natural: Callable[..., torch.Tensor]) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    save_file({"up": natural(128, 64)}, folder / "model.safetensors")
    return folder


def _encode(source: Path, out: Path) -> None:
    encode_folder(source, out, "w12", threads=1, report=lambda step: None)


@pytest.mark.parametrize(
    "name",
    [MANIFEST, MANIFEST + ".part", *(SHARD + end for end in (".part", ".journal", ".journal.new"))],
)
def test_names_that_encoding_needs_are_refused(name: str, source: Path, tmp_path: Path) -> None:
    """The copy would be lost, or lose what is kept for the next run."""
    (source / name).write_text("mine")
    with pytest.raises(CheckpointError, match=f"holds a {name}, as encoded folders do"):
        _encode(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [b"a\nb.txt", b"a\xff.txt", b"\x1b[2J.md"])
def test_names_that_cannot_be_shown_are_refused(name: bytes, source: Path, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_text("x")
    with pytest.raises(CheckpointError, match="whose name cannot be shown") as caught:
        _encode(source, tmp_path / "out")
    assert str(caught.value).isprintable()
    assert not (tmp_path / "out").exists()


def test_everything_but_weights_is_copied(source: Path, tmp_path: Path) -> None:
    kept = {"config.json": "{}", "config.json.part": "x", "LICENSE": "free", "größe.txt": "1"}
    for name, text in {**kept, "pytorch_model.bin": "w", "model.x.index.json": "{}"}.items():
        (source / name).write_text(text)
    (source / "folder").mkdir()
    (source / "gone.txt").symlink_to("nowhere")
    os.mkfifo(source / "pipe.txt")
    out = tmp_path / "out"
    _encode(source, out)
    assert {path.name for path in out.iterdir()} == {SHARD, MANIFEST, *kept}
    assert all((out / name).read_text() == text for name, text in kept.items())
    assert verify_folder(out, threads=1, report=lambda step: None) == []

"""`specpilot weights` from outside, on a small checkpoint."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from specpilot.cli.main import run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with one BF16 matrix and a norm, written without torch."""
    folder = tmp_path / "model"
    folder.mkdir()
    rng = np.random.default_rng(0)
    values = (0.02 * rng.normal(size=(256, 512))).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    header = {
        "up.weight": {"dtype": "BF16", "shape": [256, 512], "data_offsets": [0, bits.nbytes]},
        "norm.weight": {
            "dtype": "F32",
            "shape": [4],
            "data_offsets": [bits.nbytes, bits.nbytes + 16],
        },
    }
    text = json.dumps(header).encode()
    data = bits.tobytes() + np.ones(4, dtype=np.float32).tobytes()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def test_encode_verify_inspect(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["weights", "encode", str(checkpoint), str(out), "--format", "w11s"]) == 0
    shown = capfd.readouterr().out
    assert "encode: 100%" in shown
    assert "bits per weight" in shown

    assert run(["weights", "verify", str(out), "--threads", "1"]) == 0
    assert "bit for bit" in capfd.readouterr().out

    assert run(["weights", "inspect", str(out), "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert [row["format"] for row in report["tensors"]] == ["w11s", "plain"]
    assert 11 < report["packed_bits_per_weight"] < 11.5

    assert run(["weights", "inspect", str(out)]) == 0
    shown = capfd.readouterr().out
    assert "11 in place" in shown
    assert "it is F32, not BF16" in shown

    (shard,) = out.glob("*.safetensors")
    octets = bytearray(shard.read_bytes())
    octets[-1] ^= 4
    shard.write_bytes(octets)
    assert run(["weights", "verify", str(out)]) == 1
    assert "norm.weight: data does not match its hash" in capfd.readouterr().out
    assert run(["weights", "verify", str(out), "--json"]) == 1
    assert len(json.loads(capfd.readouterr().out)["faults"]) == 1


def test_errors_are_one_line(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["weights", "encode", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    assert capfd.readouterr().err.startswith("error: ")
    assert run(["weights", "encode", str(checkpoint), str(checkpoint)]) == 1
    assert "name a new folder" in capfd.readouterr().err
    assert run(["weights", "encode", str(checkpoint), "x", "--format", "w13"]) == 1
    assert "use w12, w12n, w11s" in capfd.readouterr().err
    assert run(["weights", "verify", str(checkpoint)]) == 1
    assert "holds no weights.json" in capfd.readouterr().err
    assert run(["weights", "inspect", str(checkpoint)]) == 1


PROGRESS = '{"event": "tensor", "tensor": "up", "done_bytes": 1, "total_bytes": 2}'


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("kill -INT $PPID; exec sleep 60", 130, "interrupted; the same command continues"),
        ("kill -TERM $PPID; exec sleep 60", 143, "interrupted; the same command continues"),
        ("kill -KILL $$", 1, "error: the engine's process was killed by SIGKILL"),
        ('printf \'{"event": "res\'; kill -KILL $$', 1, "killed by SIGKILL"),
        ("exit 0", 1, "ended with code 0 and no result"),
        ("exit 3", 1, "ended with code 3 and no result"),
    ],
)
def test_an_engine_that_ends_early_is_one_line(
    end: str,
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The double stands in for the interpreter that the engine runs in."""
    engine = tmp_path / "engine"
    engine.write_text(f"#!/bin/sh\necho '{PROGRESS}'\n{end}\n")
    engine.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(engine))
    assert run(["weights", "encode", "in", "out"]) == code
    shown = capfd.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert "encode: 50% (up)" in shown.out

"""Runs that end early: signals, full disks, damaged leftovers. Nothing is lost, nothing trusted."""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specengine.errors import EngineError, OptionError
from specengine.weights import __main__ as command
from specengine.weights import encode_folder as encoding
from specengine.weights.encode_folder import Progress, encode_folder
from specengine.weights.journal import read_journal
from specengine.weights.manifest import MANIFEST, StoredTensor
from specengine.weights.reader import EncodedFolder
from specengine.weights.shard_file import ShardWriter
from specengine.weights.verify_folder import verify_folder

Natural = Callable[..., torch.Tensor]
SHARD = "weights-00001-of-00001.safetensors"


class _Killed(Exception):
    pass


@pytest.fixture
def tensors(natural: Natural) -> dict[str, torch.Tensor]:
    return {f"layer.{i}.weight": natural(128 + 64 * i, 256, i) for i in range(4)}


@pytest.fixture
def source(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"layers": 4}')
    return folder


@pytest.fixture
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in command.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _stop_after(count: int) -> Callable[[Progress], None]:
    steps: list[Progress] = []

    def report(step: Progress) -> None:
        steps.append(step)
        if len(steps) == count:
            raise _Killed

    return report


def _encode(source: Path, out: Path, report: Callable[[Progress], None] = lambda step: None) -> int:
    """Returns how many tensors were encoded, not taken over."""
    fresh = []
    original = ShardWriter.commit

    def counted(self: ShardWriter, name: str, tensor: StoredTensor) -> None:
        fresh.append(name)
        original(self, name, tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardWriter, "commit", counted)
        encode_folder(source, out, "w12", threads=1, report=report)
    return len(fresh)


def _check(out: Path, tensors: dict[str, torch.Tensor]) -> None:
    assert verify_folder(out, threads=1, report=lambda step: None) == []
    stored = EncodedFolder(out)
    for name, tensor in tensors.items():
        assert torch.equal(stored.tensor(name), tensor)
    assert {path.name for path in out.iterdir()} == {SHARD, MANIFEST, "config.json"}


def _interrupted(source: Path, out: Path) -> Path:
    """A run that was killed after three of four tensors; returns its journal."""
    with pytest.raises(_Killed):
        _encode(source, out, _stop_after(3))
    journal = out / (SHARD + ".journal")
    assert len(read_journal(journal).tensors) == 3
    return journal


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "none": (lambda text: text, 1),
    "a torn last line": (lambda text: text[:-9], 2),
    "a line without its end": (lambda text: text[:-1], 2),
    "half a line more": (lambda text: text + b'{"name": "torn', 1),
    "no UTF-8 at the end": (lambda text: text + b"\xff\xfe\n", 1),
    "another hash inside": (lambda text: _in_line(text, 2, b'"sha256": "', b'"sha256": "0'), 3),
    "another range": (lambda text: _in_line(text, 3, b'"begin": ', b'"begin": 1'), 2),
    "a lost line": (lambda text: b"".join(text.splitlines(True)[i] for i in (0, 1, 3)), 3),
    "lines in another order": (
        lambda text: b"".join(text.splitlines(True)[i] for i in (0, 2, 1, 3)),
        4,
    ),
    "a line twice": (lambda text: text + text.splitlines(True)[-1], 1),
    "no identity": (lambda text: b"".join(text.splitlines(True)[1:]), 4),
    "zeros": (lambda text: bytes(len(text)), 4),
    "nothing": (lambda text: b"", 4),
    "deep nesting": (lambda text: b"[" * 100_000 + b"\n", 4),
}


def _in_line(text: bytes, index: int, old: bytes, new: bytes) -> bytes:
    lines = text.splitlines(True)
    assert old in lines[index]
    lines[index] = lines[index].replace(old, new, 1)
    return b"".join(lines)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_journals_lose_and_trust_nothing(
    kind: str, source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    change, left = DAMAGES[kind]
    journal = _interrupted(source, tmp_path / "out")
    journal.write_bytes(change(journal.read_bytes()))
    assert _encode(source, tmp_path / "out") == left
    _check(tmp_path / "out", tensors)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_damaged_data_is_encoded_again(
    kept: int, source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    journal = _interrupted(source, tmp_path / "out")
    part = tmp_path / "out" / (SHARD + ".part")
    name, tensor = list(read_journal(journal).tensors.items())[kept]
    start = part.stat().st_size - max(
        array.end for one in read_journal(journal).tensors.values() for array in one.arrays.values()
    )
    octets = bytearray(part.read_bytes())
    octets[start + tensor.arrays["tops"].begin] ^= 1
    part.write_bytes(octets)
    assert _encode(source, tmp_path / "out") == 4 - kept, name
    _check(tmp_path / "out", tensors)


def test_a_finished_shard_is_checked_before_it_is_taken_over(
    source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(encoding, "write_manifest", die)
        _encode(source, tmp_path / "out")
    path = tmp_path / "out" / SHARD
    octets = bytearray(path.read_bytes())
    octets[-1000] ^= 1
    path.write_bytes(octets)
    assert _encode(source, tmp_path / "out") == 1
    _check(tmp_path / "out", tensors)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changed", [0, 2, 3])
def test_a_source_that_changed_meanwhile_is_encoded_again(
    finished: bool,
    changed: int,
    source: Path,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    natural: Natural,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of another checkpoint with the same names and shapes, not one tensor may be the old one."""

    def die(*arguments: object) -> None:
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        if finished:
            patch.setattr(encoding, "write_manifest", die)
        _encode(source, tmp_path / "out", (lambda step: None) if finished else _stop_after(3))
    name = f"layer.{changed}.weight"
    tensors[name] = natural(*tensors[name].shape, 9)
    save_file(tensors, source / "model.safetensors")
    assert _encode(source, tmp_path / "out") == 4 - (min(changed, 3) if finished else changed)
    _check(tmp_path / "out", tensors)


def test_resuming_never_holds_less_than_before(
    source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once more while the journal is being taken over."""
    journal = _interrupted(source, tmp_path / "out")

    def die(self: Path, target: Path) -> Path:
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(Path, "replace", die)
        _encode(source, tmp_path / "out")
    assert len(read_journal(journal).tensors) == 3
    assert _encode(source, tmp_path / "out") == 1
    _check(tmp_path / "out", tensors)


@contextmanager
def _small_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes; the kernel refuses the rest as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1000, 120_000])
def test_a_full_disk_is_one_line_and_the_run_goes_on(
    size: int, source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    with _small_disk(size), pytest.raises(EngineError) as caught:
        _encode(source, tmp_path / "out")
    assert "cannot be written (File too large); free space, then repeat" in str(caught.value)
    assert SHARD in caught.value.where
    assert "\n" not in str(caught.value)
    assert _encode(source, tmp_path / "out") == (3 if size == 120_000 else 4)
    _check(tmp_path / "out", tensors)


@pytest.mark.parametrize("number", command.SIGNALS)
def test_signals_end_in_one_line_and_the_run_goes_on(
    number: int,
    source: Path,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    kept_signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(step: Progress) -> None:
        signal.raise_signal(number)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(command, "_progress", interrupt)
        assert command.main(["encode", str(source), str(out)]) == 128 + number
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["message"] == "interrupted; the same command continues"
    assert _encode(source, out) == 3
    with monkeypatch.context() as patch:
        patch.setattr(command, "_progress", interrupt)
        assert command.main(["verify", str(out)]) == 128 + number
    _check(out, tensors)


@pytest.mark.parametrize("number", command.SIGNALS)
@pytest.mark.parametrize("late", ["inspect_folder", "_tell"])
def test_signals_at_the_end_do_not_deny_the_result(
    late: str,
    number: int,
    source: Path,
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    kept_signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder is complete then: the same command would not continue."""
    original = getattr(command, late)

    def interrupted(*arguments: object) -> object:
        if arguments[0] != "tensor":
            signal.raise_signal(number)
        return original(*arguments)

    monkeypatch.setattr(command, late, interrupted)
    assert command.main(["encode", str(source), str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["event"] == "result"
    _check(tmp_path / "out", tensors)


def test_two_signals_at_once_are_one_line(
    source: Path,
    tmp_path: Path,
    kept_signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    complaints: list[object] = []

    def interrupt(step: Progress) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, command.SIGNALS)
        for number in command.SIGNALS:
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, command.SIGNALS)

    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(command, "_progress", interrupt)
    code = command.main(["encode", str(source), str(tmp_path / "out")])
    assert code == 128 + signal.SIGINT
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["message"] == "interrupted; the same command continues"
    assert complaints == []


def test_a_signal_does_not_cut_an_error_short(
    source: Path,
    tmp_path: Path,
    kept_signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original = command._tell

    def interrupted(event: str, fields: dict[str, object]) -> None:
        signal.raise_signal(signal.SIGTERM)
        original(event, fields)

    monkeypatch.setattr(command, "_tell", interrupted)
    assert command.main(["encode", str(source), str(tmp_path), "--format", "w13"]) == 1
    assert "w13" in json.loads(capsys.readouterr().out)["message"]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (5, 4), (128, 6)])
def test_threads_are_few_unless_asked_for(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds memory, of which a run on a large machine takes no more than on a small one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    for words in (["encode", "a", "b"], ["verify", "a"]):
        assert command._parser().parse_args(words).threads == threads
        assert command._parser().parse_args([*words, "--threads", "50"]).threads == 50


def test_journals_of_a_run_killed_at_its_very_end_are_removed(
    source: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(path: Path, missing_ok: bool = False) -> None:
        raise _Killed

    with monkeypatch.context() as patch, pytest.raises(_Killed):
        patch.setattr(Path, "unlink", die)
        _encode(source, tmp_path / "out")
    assert (tmp_path / "out" / (SHARD + ".journal")).exists()
    with pytest.raises(OptionError, match="holds a checkpoint already"):
        _encode(source, tmp_path / "out")
    _check(tmp_path / "out", tensors)


def test_two_runs_do_not_write_one_folder(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def again(step: Progress) -> None:
        with pytest.raises(OptionError, match="is being written by another process"):
            encode_folder(source, out, "w12", threads=1, report=lambda step: None)

    _encode(source, out, again)


def test_changed_and_missing_copies_are_named(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    out = tmp_path / "out"
    _encode(source, out)
    (out / "config.json").write_text('{"layers": 5}')
    (out / "tokenizer.json").unlink()
    faults = verify_folder(out, threads=1, report=lambda step: None)
    assert {(fault.where, fault.what) for fault in faults} == {
        ("config.json", "was changed"),
        ("tokenizer.json", "is missing"),
    }

"""One line where nothing was said, one name where two were, an error where a guess was."""

from pathlib import Path

import pytest
import simulation

from specpilot.cli.main import run
from specpilot.cli.serve import choose_system
from specpilot.controller.main import run_controller
from specpilot.core.errors import ExitCode, Refused

COMMANDS = [
    ["demo"], ["init"], ["plan"], ["doctor"], ["optimize"], ["resume"], ["status"], ["stop"],
    ["serve"], ["force"], ["ceiling"], ["replay"], ["report"], ["ctl"], ["memory"],
    ["memory", "list"], ["memory", "export"], ["weights"], ["weights", "encode"], [],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda value: " ".join(value) or "none")
def test_short_and_long_help_are_the_same(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for flag in ("-h", "--help"):
        assert run([*command, flag]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "Usage" in said[0]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("specpilot ")


def test_an_empty_memory_is_said_to_be_empty(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("list", "verify"):
        assert run(["memory", command]) == 0
        said = capsys.readouterr().out
        assert said.count("\n") == 1
        assert "runs/memory holds no entries" in said
    assert run(["memory", "export", "all.zip"]) == ExitCode.REFUSED
    assert "holds no entries" in capsys.readouterr().err
    assert not (work / "all.zip").exists()


@pytest.mark.parametrize(("name", "text"), [
    ("runs/*/recordings/x.npz", "matches no file"),
    ("missing.npz", "is not a file of recordings (no file)"),
    ("folder", "is not a file of recordings (a folder)"),
])  # fmt: skip
def test_recordings_that_are_no_files_are_said_so(
    name: str, text: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "folder").mkdir()
    assert run(["replay", name]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error
    assert "Errno" not in error


def finished(folder: Path, edits: simulation.Edits) -> Path:
    """A finished simulated run."""
    deployment = simulation.deployment_of()
    simulation.write_deployment(folder, deployment)
    run_controller(folder, simulation.parts_of(deployment, edits))
    return folder


def test_serve_never_passes_stock_off_as_the_best(tmp_path: Path) -> None:
    nothing = finished(tmp_path / "nothing", {})
    sound = finished(tmp_path / "sound", {"sound": [simulation.faster(1.2)]})
    assert choose_system(nothing, None) == ("stock", f"{nothing} promoted nothing")
    name, why = choose_system(sound, None)
    assert name == "best"
    assert why.endswith("confirmed by a sealed final")
    assert choose_system(sound, "best") == (name, why)
    assert choose_system(tmp_path / "none", None) == ("stock", f"no run in {tmp_path / 'none'}")
    for folder, text in ((nothing, "promoted nothing"), (tmp_path / "none", "holds no run")):
        with pytest.raises(Refused, match=text):
            choose_system(folder, "best")
        assert choose_system(folder, "stock") == ("stock", "")

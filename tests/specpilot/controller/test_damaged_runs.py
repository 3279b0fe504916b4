"""Lost files end a run, are nobody's failure, and it goes on once they are back."""

from pathlib import Path

import pytest
from simulation import deployment_of, faster, parts_of, state_of, write_deployment

from specpilot.controller.journal import read_journal
from specpilot.controller.main import main
from specpilot.core.errors import ExitCode
from specpilot.loop.run import Parts


def play(folder: Path) -> int:
    return main(folder, parts())


def parts() -> Parts:
    return parts_of(deployment_of(), {"one": [faster(1.1)]}, operations=("check", "submit"))


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A run whose journal ends when its direction has been planned."""
    write_deployment(tmp_path, deployment_of())
    assert play(tmp_path) == ExitCode.OK
    journal = tmp_path / "journal.jsonl"
    kinds = [line.kind for line in read_journal(journal).lines]
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: kinds.index("direction_opened")]))
    return tmp_path


@pytest.mark.parametrize("lost", ["records", "sealed/split.json"])
def test_lost_files_end_the_run_and_charge_no_direction(
    lost: str,
    planned: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = planned / "kept"
    (planned / lost).rename(kept)
    assert play(planned) == ExitCode.ERROR

    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert lost in said
    assert not caplog.records, "an error that nothing caught is logged with its traceback"
    direction = state_of(planned).directions["one"]
    assert not direction.answers
    assert direction.closed is None

    kept.rename(planned / lost)
    assert play(planned) == ExitCode.OK
    assert state_of(planned).directions["one"].promoted is not None


def test_a_broken_reference_of_the_runs_own_repository_charges_no_direction(
    planned: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Git blames the worktree that it fetches from."""
    broken = planned / "repo" / "refs" / "heads" / "base" / "another"
    broken.parent.mkdir(parents=True, exist_ok=True)
    broken.write_bytes(b"\xff\x00{")
    assert play(planned) == ExitCode.ERROR

    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "repo: is damaged" in said
    assert state_of(planned).directions["one"].closed is None

    broken.unlink()
    assert play(planned) == ExitCode.OK
    assert state_of(planned).directions["one"].promoted is not None

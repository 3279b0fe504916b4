"""Who loses a race for a run says so and no more; odd folder names keep lines whole."""

import fcntl
from pathlib import Path

import pytest
import simulation

from specpilot.cli import optimize
from specpilot.cli.main import run

PLAIN = {"devices": ["cpu"], "isolation": "none"}
NAME = "two\nlines"


@pytest.fixture
def begun(work: Path) -> Path:
    """A run folder that a controller worked on until its fourth journal line."""
    folder = work / NAME
    deployment = simulation.deployment_of(platform=PLAIN)
    simulation.write_deployment(folder, deployment)
    assert simulation.run_killed(folder, simulation.parts_of(deployment, {}), at=4, torn=False)
    return folder


def test_the_loser_of_two_prints_no_summary(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optimize, "drive", lambda *_: 1)
    with (begun / "journal.jsonl").open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert run(["resume", str(begun)]) == 1
    assert capsys.readouterr().out == ""
    assert not (begun / "report").exists()

    assert run(["resume", str(begun)]) == 1
    assert "Not finished" in capsys.readouterr().out


def test_a_line_break_in_a_name_breaks_no_line(
    begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(begun)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(r"two\nlines/report/index.html")

    assert run(["report", str(begun.parent / "no\nrun")]) == 1
    assert capsys.readouterr().err.count("\n") == 1

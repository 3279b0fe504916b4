"""Terminals and files that know ASCII only: signs are spelled, and nothing ends for want of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulation

COMMAND = [sys.executable, "-m", "specpilot.cli.main"]
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def called(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """One command in a world of ASCII."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, check=False,
        env={**os.environ, **ASCII},
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A run that was optimized in such a world, and what the command printed."""
    folder = tmp_path_factory.mktemp("ascii")
    platform = {"devices": ["cpu"], "isolation": "none"}
    simulation.write_deployment(folder, simulation.deployment_of(platform=platform))
    done = called(folder, "optimize", "deployment.toml")
    assert b"Traceback" not in done.stderr
    assert done.returncode == 5
    return folder, done.stdout


def test_a_whole_run_spells_its_signs(played: tuple[Path, bytes]) -> None:
    said = played[1].decode("ascii")
    assert "tokens per second (tau)" in said
    assert "A/A noise +-" in said
    assert "tau 1" in said
    assert "index.html" in said


@pytest.mark.parametrize("command", ["status", "report", "ceiling"])
def test_reading_commands_degrade(played: tuple[Path, bytes], command: str) -> None:
    done = called(played[0], command, "runs/simulated")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii")


def test_json_is_escaped_and_not_altered(played: tuple[Path, bytes]) -> None:
    journal = (played[0] / "runs/simulated/journal.jsonl").read_text(encoding="utf-8")
    named = called(played[0], "report", "runs/simulated", "--json")
    whole = json.loads((played[0] / "runs/simulated/report/report.json").read_text("utf-8"))
    assert json.loads(named.stdout.decode("ascii")) == whole
    assert journal


def test_an_error_with_foreign_signs_is_still_one_line(played: tuple[Path, bytes]) -> None:
    done = called(played[0], "optimize", "τ-missing.toml")
    assert done.returncode == 1
    assert done.stderr.decode("ascii").count("\n") == 1

"""Terminals and files that know ASCII only: signs are spelled, and nothing ends for want of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulation

from specpilot.controller.main import run_controller
from specpilot.core.errors import ExitCode

COMMAND = [sys.executable, "-m", "specpilot"]
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def called(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """One command in a world of ASCII."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, check=False,
        env={**os.environ, **ASCII},
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A finished run, and what `resume` prints of it in such a world: every line and the table."""
    folder = tmp_path_factory.mktemp("ascii")
    deployment = simulation.deployment_of()
    null = ("system.toml", "positions = 0", "positions = 8")
    run = folder / "runs" / "simulated"
    simulation.write_deployment(run, deployment)
    run_controller(run, simulation.parts_of(deployment, {"null": [null]}))
    done = called(folder, "resume", "runs/simulated")
    assert b"Traceback" not in done.stderr
    assert done.returncode == ExitCode.NOTHING_PROMOTED
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
    named = called(played[0], "report", "runs/simulated", "--json")
    found = json.loads(named.stdout.decode("ascii"))
    assert "A/A noise ±" in found["detail"]
    assert found == json.loads(
        (played[0] / "runs/simulated/report/report.json").read_text(encoding="utf-8")
    )


def test_an_error_with_foreign_signs_is_still_one_line(played: tuple[Path, bytes]) -> None:
    done = called(played[0], "optimize", "τ-missing.toml")
    assert done.returncode == 1
    assert done.stderr.decode("ascii").count("\n") == 1

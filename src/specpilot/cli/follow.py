"""Starting a controller and showing what its journal says until it ends."""

import json
import subprocess
import sys
import time
from pathlib import Path

import typer

from specpilot.controller.journal import read_journal
from specpilot.core.errors import ExitCode, SpecPilotError
from specpilot.report.lines import describe

_POLL_SECONDS = 0.5


def run_and_follow(folder: Path, *, as_json: bool) -> ExitCode:
    """Start the controller on a run folder and print its events; returns its exit code.

    The controller ends when this process ends, however it ends.
    """
    journal = folder / "journal.jsonl"
    shown = len(read_journal(journal).lines) if journal.exists() else 0
    command = [sys.executable, "-m", "specpilot.controller", "--run", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while True:
            ended = process.poll() is not None
            shown = _print_new(journal, shown, as_json=as_json)
            if ended:
                return ExitCode(process.returncode) if process.returncode >= 0 else ExitCode.ERROR
            time.sleep(_POLL_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def write_run(folder: Path, deployment_toml: str) -> None:
    """Lock a deployment in a new run folder.

    Raises:
        SpecPilotError: the folder holds a run already, or cannot be written.
    """
    try:
        if (folder / "journal.jsonl").exists():
            raise SpecPilotError(
                "holds a run already",
                where=str(folder),
                fix=f"continue it with 'specpilot resume {folder}', or choose another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "deployment.toml").write_text(deployment_toml, encoding="utf-8")
    except OSError as error:
        raise SpecPilotError(
            f"cannot be written ({error.strerror})", where=str(folder), fix="choose another folder"
        ) from error


def _print_new(journal: Path, shown: int, *, as_json: bool) -> int:
    if not journal.exists():
        return shown
    lines = read_journal(journal).lines
    for line in lines[shown:]:
        if as_json:
            typer.echo(json.dumps(line.to_json()))
        elif (spoken := describe(line.event())) is not None:
            typer.echo(f"{line.time[11:19]}  {spoken}")
    return len(lines)

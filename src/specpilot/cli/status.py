"""`specpilot status` and `specpilot stop`: what a run is doing, and ending it."""

import json as jsonlib
import os
import signal
from pathlib import Path
from typing import Annotated

import psutil
import typer

from specpilot.controller.journal import JournalLine, read_journal
from specpilot.core.errors import SpecPilotError
from specpilot.report.lines import describe

RunArgument = Annotated[Path, typer.Argument(help="The run folder.")]


def status(
    run: RunArgument, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show where a run stands."""
    lines = _lines(run)
    spoken = [text for line in lines if (text := describe(line.event()))]
    facts = {"events": len(lines), "controller": _controller(run), "last": spoken[-1:]}
    if json:
        typer.echo(jsonlib.dumps(facts))
        return
    typer.echo(f"{facts['events']} events; controller {facts['controller'] or 'not running'}")
    typer.echo("\n".join(spoken[-5:]))


def stop(run: RunArgument) -> None:
    """End a run's controller, its servers and agents; `resume` continues it."""
    pid = _controller(run)
    if pid is None:
        raise SpecPilotError(
            "has no running controller", where=str(run), fix="see 'specpilot status'"
        )
    os.kill(pid, signal.SIGTERM)
    psutil.Process(pid).wait(timeout=60)
    typer.echo("stopped")


def _lines(run: Path) -> tuple[JournalLine, ...]:
    journal = run / "journal.jsonl"
    if not journal.is_file():
        raise SpecPilotError("holds no journal", where=str(run), fix="give a run folder")
    return tuple(read_journal(journal).lines)


def _controller(run: Path) -> int | None:
    """Process id of the run's live controller."""
    started = [line for line in _lines(run) if line.kind == "controller_started"]
    if not started:
        return None
    pid = int(started[-1].data["pid"])
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return None
    return pid if "specpilot.controller" in command else None

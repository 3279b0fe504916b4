"""`specpilot status RUN`: where a run stands, from its journal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from specpilot.cli.display import render
from specpilot.cli.output import is_terminal, print_json
from specpilot.cli.runs import controller_process, require_run
from specpilot.controller.journal import read_journal
from specpilot.loop.state import fold
from specpilot.report.facts import build_report
from specpilot.report.lines import describe


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    as_json: Annotated[bool, typer.Option("--json", help="all facts as JSON")] = False,
) -> None:
    """Show directions, leases, time and the last verdict of a run, live or not."""
    lines = read_journal(require_run(run)).lines
    alive = controller_process(run)
    report = build_report(lines)
    if as_json:
        print_json({"running": alive is not None, **report})
        return
    state = fold(line.event() for line in lines)
    recent = [text for line in lines if (text := describe(line.event())) is not None]
    colour = is_terminal()
    console = Console(no_color=not colour, highlight=False, width=None if colour else 110)
    console.print(render(state, recent[-5:], report["seconds"] or 0.0))
    if alive is not None:
        typer.echo(f"running, process {alive.pid}")
    elif state.finished is None:
        typer.echo(f"not running; continue with 'specpilot resume {run}'")

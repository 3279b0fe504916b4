"""`specpilot status RUN`: where a run stands, from its journal."""

from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.console import console
from specpilot.cli.display import render
from specpilot.cli.estimate import spell_seconds
from specpilot.cli.output import print_json, say
from specpilot.cli.runs import controller_process, require_run
from specpilot.cli.watching import Watch
from specpilot.controller.journal import read_journal
from specpilot.report.facts import build_report


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    as_json: Annotated[bool, typer.Option("--json", help="all facts as JSON")] = False,
) -> None:
    """Show directions, leases, time and the last verdict of a run, live or not."""
    lines = read_journal(require_run(run)).lines
    alive = controller_process(run)
    watch = Watch(run, live=alive is not None)
    for line in lines:
        watch.add(line)
    if as_json:
        now = {
            "running": alive is not None,
            "doing": watch.doing() or None,
            "last_event_at": lines[-1].time,
        }
        print_json({**now, **build_report(lines)})
        return
    console(110).print(render(watch))
    at = "" if watch.last is None else f" at {watch.last:%Y-%m-%d %H:%M:%S} UTC"
    say(f"last event {spell_seconds(watch.quiet_seconds())} ago{at}")
    if alive is not None:
        say(f"running, process {alive.pid}")
    elif watch.state.finished is None:
        say(f"not running; continue with 'specpilot resume {run}'")

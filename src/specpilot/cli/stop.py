"""`specpilot stop RUN`: end a run in order; it can be resumed."""

from pathlib import Path
from typing import Annotated

import psutil
import typer

from specpilot.cli.output import print_json, say
from specpilot.cli.runs import controller_process, require_run
from specpilot.core.errors import SpecPilotError

WAIT_SECONDS = 60.0


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    as_json: Annotated[bool, typer.Option("--json", help="the result as JSON")] = False,
) -> None:
    """Ask the controller to end its servers and agents, and wait until it is gone."""
    require_run(run)
    process = controller_process(run)
    if process is not None:
        process.terminate()
        try:
            process.wait(WAIT_SECONDS)
        except psutil.TimeoutExpired as error:
            raise SpecPilotError(
                f"process {process.pid} did not end within {WAIT_SECONDS:.0f} s",
                where=str(run),
                fix=f"end it with 'kill -9 {process.pid}'; nothing recorded is lost",
            ) from error
    if as_json:
        print_json({"stopped": process is not None, "pid": process.pid if process else None})
    else:
        say("stopped" if process is not None else "was not running")

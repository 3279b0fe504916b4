"""`specpilot resume RUN`: go on from the journal; only the budget may change."""

from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot.cli.optimize import run_and_report
from specpilot.cli.output import Finished
from specpilot.cli.runs import (
    DEPLOYMENT_FILE,
    JOURNAL_FILE,
    controller_process,
    require_run,
    write_deployment,
)
from specpilot.core.deployment import load_deployment, parse_deployment
from specpilot.core.errors import Refused


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    rounds: Annotated[int | None, typer.Option(min=1, help="new limit of rounds")] = None,
    max_gpu_hours: Annotated[float | None, typer.Option(min=0, help="new limit")] = None,
    max_usd: Annotated[float | None, typer.Option(min=0, help="new limit")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="journal lines as JSON")] = False,
) -> None:
    """Continue a run that was stopped, killed, or that reached a limit."""
    # A run that failed before its first line may be tried again as it is.
    if not (run / JOURNAL_FILE).is_file():
        require_run(run)
    alive = controller_process(run)
    if alive is not None:
        raise Refused(
            f"is being worked on by process {alive.pid}",
            where=str(run),
            fix=f"watch it with 'specpilot status {run}'",
        )
    path = run / DEPLOYMENT_FILE
    limits = {"max_rounds": rounds, "max_gpu_hours": max_gpu_hours, "max_usd": max_usd}
    changed: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
    if changed:
        table = load_deployment(path).model_dump(mode="json", exclude_none=True)
        table["budget"] |= changed
        write_deployment(parse_deployment(table, where="command line"), path)
    raise Finished(run_and_report(run, as_json=as_json))

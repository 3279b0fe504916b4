"""`specpilot resume RUN`: go on from the journal; only the budget may change."""

from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot.cli.claim import claimed
from specpilot.cli.drive import controller_log
from specpilot.cli.isolation import require_isolation
from specpilot.cli.load import note_load
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
    # A run that ended before its first line goes on as it is; what its controller opens first tells
    # it from a folder that only holds a deployment.
    if not any(path.is_file() for path in (run / JOURNAL_FILE, controller_log(run))):
        require_run(run)
    with claimed(run):
        _require_idle(run)
        path = run / DEPLOYMENT_FILE
        deployment = load_deployment(path)
        limits = {"max_rounds": rounds, "max_gpu_hours": max_gpu_hours, "max_usd": max_usd}
        changed: dict[str, Any] = {k: value for k, value in limits.items() if value is not None}
        if changed:
            table = deployment.model_dump(mode="json", exclude_none=True)
            table["budget"] |= changed
            write_deployment(parse_deployment(table, where="command line"), path)
        require_isolation(deployment)
        note_load(deployment)
        code = run_and_report(run, as_json=as_json)
    raise Finished(code)


def _require_idle(run: Path) -> None:
    """A controller may outlive the command that started it for the seconds that it takes to end."""
    alive = controller_process(run)
    if alive is not None:
        raise Refused(
            f"is being worked on by process {alive.pid}",
            where=str(run),
            fix=f"watch it with 'specpilot status {run}'",
        )

"""`specpilot optimize DEPLOYMENT`: rounds of the loop, from stock or from where memory helps."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from specpilot.cli.claim import claimed
from specpilot.cli.display import choose_display
from specpilot.cli.drive import controller_log, drive
from specpilot.cli.earlier_runs import expected_unit
from specpilot.cli.isolation import require_isolation
from specpilot.cli.load import note_load
from specpilot.cli.models import require_models
from specpilot.cli.output import Finished
from specpilot.cli.runs import (
    DEPLOYMENT_FILE,
    RUNS,
    create_run,
    has_begun,
    is_being_written,
    require_free,
)
from specpilot.cli.summary import print_summary
from specpilot.cli.watching import Watch, utc_now
from specpilot.core.deployment import Deployment, load_deployment, parse_deployment
from specpilot.core.errors import ExitCode, SpecPilotError

AgentName = Literal["playbook", "claude", "codex"]


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    run: Annotated[Path | None, typer.Option(help="run folder; runs/NAME when absent")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds at most")] = None,
    agent: Annotated[AgentName | None, typer.Option(help="who explores")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="journal lines as JSON")] = False,
) -> None:
    """Look for lossless speed and confirm it on sealed requests."""
    chosen = _with_choices(load_deployment(deployment), rounds, agent)
    folder = run or RUNS / chosen.name
    require_free(folder)
    require_models(chosen)
    require_isolation(chosen)
    note_load(chosen)
    with claimed(folder, make=True):
        create_run(chosen, folder)
        code = run_and_report(folder, as_json=as_json)
    raise Finished(code)


def run_and_report(folder: Path, *, as_json: bool) -> int:
    """Drive a run to its end, write its report, print its summary; returns the exit code."""
    from specpilot.report.writing import write_report

    unit = expected_unit(load_deployment(folder / DEPLOYMENT_FILE))
    watch = Watch(folder, unit=unit, begun=utc_now())
    code = drive(folder, choose_display(watch, json_lines=as_json))
    if code == ExitCode.ERROR and is_being_written(folder):
        # Another process works on it and will say how it ends.
        return code
    if has_begun(folder):
        try:
            report, where = write_report(folder)
        except SpecPilotError:
            # Where the controller has said what is wrong, one error line is enough.
            if code == ExitCode.OK or not controller_log(folder).stat().st_size:
                raise
            return code
        if not as_json:
            print_summary(report, where)
    return code


def _with_choices(
    deployment: Deployment, rounds: int | None, agent: AgentName | None
) -> Deployment:
    table = deployment.model_dump(mode="json", exclude_none=True)
    if rounds is not None:
        table["budget"]["max_rounds"] = rounds
    if agent is not None:
        preset = {} if agent == "playbook" else {"preset": agent}
        kept = {k: table["agent"][k] for k in ("max_directions", "deadline_seconds")}
        kind = "playbook" if agent == "playbook" else "command"
        table["agent"] = {"kind": kind, **preset, **kept}
    return parse_deployment(table, where="command line")

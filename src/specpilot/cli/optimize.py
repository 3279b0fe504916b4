"""`specpilot optimize` and `specpilot resume`: the loop."""

from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.follow import run_and_follow, write_run
from specpilot.cli.report import finish
from specpilot.core.deployment import load_deployment
from specpilot.core.errors import SpecPilotError

JsonFlag = Annotated[bool, typer.Option("--json", help="Print journal lines as JSON.")]


def optimize(
    deployment: Annotated[Path, typer.Argument(help="The deployment file.")],
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME when absent.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run the loop on a deployment."""
    checked = load_deployment(deployment)
    folder = run or Path("runs") / checked.name
    write_run(folder, deployment.read_text(encoding="utf-8"))
    finish(folder, run_and_follow(folder, as_json=json), as_json=json)


def resume(
    run: Annotated[Path, typer.Argument(help="The run folder.")], json: JsonFlag = False
) -> None:
    """Continue a run that was stopped or killed; only its budget may have changed."""
    if not (run / "deployment.toml").is_file():
        raise SpecPilotError(
            "is not a run folder", where=str(run), fix="give the folder of an earlier run"
        )
    finish(run, run_and_follow(run, as_json=json), as_json=json)

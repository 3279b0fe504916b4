"""`specpilot doctor DEPLOYMENT`: what would make a run fail or lie, tried out before it starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.doctor_finding import Finding
from specpilot.cli.output import Finished, is_terminal, print_json, say
from specpilot.core.deployment import Deployment, load_deployment
from specpilot.core.errors import ExitCode, SpecPilotError


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    as_json: Annotated[bool, typer.Option("--json", help="findings as JSON")] = False,
) -> None:
    """Try sandbox, cores, disk, models, requests, agent, client overhead and stock's identity."""
    chosen = load_deployment(deployment)
    findings = [finding for check in _checks() for finding in _tried(check, chosen)]
    if as_json:
        print_json(
            [{"name": f.name, "ok": f.holds, "detail": f.detail, "fix": f.fix} for f in findings]
        )
    else:
        for found in findings:
            _show(found)
    if not all(found.holds for found in findings):
        raise Finished(ExitCode.ERROR)


Check = Callable[[Deployment], list[Finding]]


def _checks() -> tuple[tuple[str, Check], ...]:
    from specpilot.cli import doctor_checks as checks

    return (
        ("programs", checks.programs),
        ("isolation", checks.isolation),
        ("devices", checks.devices),
        ("idle cores", checks.idle_cores),
        ("disk", checks.disk),
        ("models", checks.models),
        ("requests", checks.requests),
        ("agent", checks.agent),
        ("stock identity", checks.stock_identity),
        ("client overhead", checks.client_overhead),
    )


def _tried(named: tuple[str, Check], deployment: Deployment) -> list[Finding]:
    """The findings of one check; an error that names its fix is a finding too."""
    name, check = named
    try:
        return check(deployment)
    except SpecPilotError as error:
        return [Finding(name, holds=False, detail=f"{error.where}: {error.what}", fix=error.fix)]


def _show(found: Finding) -> None:
    word = "ok    " if found.holds else "failed"
    if is_terminal():
        word = typer.style(word, fg="green" if found.holds else "red")
    action = "" if found.holds or not found.fix else f"; {found.fix}"
    say(f"{word} {found.name}: {found.detail}{action}")

"""`specpilot report`: tables, figures and one self-contained page from a journal."""

import json
from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.summary import summary_lines
from specpilot.controller.journal import read_journal
from specpilot.core.errors import ExitCode
from specpilot.loop.state import fold
from specpilot.report.writing import write_report


def report(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False,
) -> None:
    """Write report/report.json and report/index.html and print the summary."""
    facts, _ = write_report(run)
    typer.echo(json.dumps(facts, indent=2) if as_json else _summary(run, facts["seconds"]))


def finish(run: Path, code: ExitCode, *, as_json: bool) -> None:
    """After a run: write the report, print the summary, leave with the run's exit code."""
    journal = run / "journal.jsonl"
    if journal.is_file() and read_journal(journal).lines:
        facts, folder = write_report(run)
        if not as_json:
            typer.echo(f"\n{_summary(run, facts['seconds'])}\nreport: {folder / 'index.html'}")
    raise typer.Exit(int(code))


def _summary(run: Path, seconds: float | None) -> str:
    state = fold(read_journal(run / "journal.jsonl").events())
    return "\n".join(summary_lines(state, seconds))

"""`specpilot report RUN`: tables, figures and one HTML file, from the journal alone."""

from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.output import print_json
from specpilot.cli.summary import print_summary
from specpilot.report.writing import write_report


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    as_json: Annotated[bool, typer.Option("--json", help="print report.json")] = False,
) -> None:
    """Write RUN/report and show its summary; works on unfinished runs too."""
    report, folder = write_report(run)
    if as_json:
        print_json(report)
    else:
        print_summary(report, folder)

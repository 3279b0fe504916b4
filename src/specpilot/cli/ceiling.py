"""`specpilot ceiling RUN`: where a run's systems lose speed (paper section 3.1)."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from specpilot.cli.console import console
from specpilot.cli.output import number, print_json, say
from specpilot.core.errors import SpecPilotError
from specpilot.report.writing import read_report

BELOW_ONE = (
    "a factor below 1 has nothing to win; overhead is below 1 where the profiler that times the "
    "kernel classes costs more than the gaps between kernels"
)


def command(
    run: Annotated[Path, typer.Argument(help="run folder")],
    as_json: Annotated[bool, typer.Option("--json", help="the factors as JSON")] = False,
) -> None:
    """Show the three factors of the ceiling, before and after."""
    found = read_report(run)["ceiling"]
    if found["before"] is None:
        raise SpecPilotError(
            "has no ceiling yet", where=str(run), fix="wait for the end of phase 0"
        )
    if as_json:
        print_json(found)
        return
    table = Table(title="ceiling", title_justify="left")
    for name in ("", "τ", "kernel", "overhead", "ceiling", "largest", "ms per step", "floor ms"):
        table.add_column(name, justify="right" if name else "left")
    for name, facts in found.items():
        if facts is None:
            table.add_row(name, *["-"] * 7)
            continue
        factors = [number(facts["factors"][key], ".3f") for key in ("tau", "kernel", "overhead")]
        table.add_row(
            name,
            *factors,
            number(facts["ceiling"], ".3f"),
            facts["largest"],
            number(1000 * facts["seconds_per_step"], ".2f"),
            number(1000 * facts["floor_seconds"], ".2f"),
        )
    console().print(table)
    shown = [value for facts in found.values() if facts for value in facts["factors"].values()]
    if min(shown) < 1:
        say(BELOW_ONE)

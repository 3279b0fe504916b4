"""The tables of `specpilot replay` for people."""

import json
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from specpilot.cli.console import console
from specpilot.cli.output import one_line

_WIDTH = 100
"""Columns of a table that goes to a file or a pipe."""


def show(document: Mapping[str, Any]) -> None:
    """Print the table over all requests, tau per benchmark, notes and files."""
    screen = console(_WIDTH)
    screen.print(_overall(document))
    if len(document["benchmarks"]) > 1:
        screen.print(_by_benchmark(document))
    for note in document["notes"]:
        screen.print(note, soft_wrap=True)
    for file in document["files"]:
        screen.print(f"{one_line(file['path'])}  sha256 {file['sha256']}", soft_wrap=True)
    for options in document.get("fitted", ()):
        spelled = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
        screen.print(f"fitted: {spelled}", soft_wrap=True)
    for path in document.get("written", ()):
        screen.print(f"written: {one_line(path)}", soft_wrap=True)


def _overall(document: Mapping[str, Any]) -> Table:
    rows = document["rows"]
    title = f"exact replay, {rows[0]['requests']} requests, {document['positions']} positions"
    found = _table(title, ("tree", "nodes", "τ", "95%", "rows", "τ per node", "over best-first"))
    for row in rows:
        found.add_row(
            row["tree"],
            str(row["nodes"]),
            f"{row['tau']:.3f}",
            _bounds(row["interval"]),
            f"{row['rows_per_step']:.1f}",
            _signed(row["value_per_node"], 4),
            f"{_signed(row['over_reference'], 3)} {_bounds(row['over_interval'])}",
        )
    return found


def _by_benchmark(document: Mapping[str, Any]) -> Table:
    benchmarks = document["benchmarks"]
    found = _table("τ per benchmark", ("tree", "nodes", *map(one_line, benchmarks)))
    for index, row in enumerate(document["rows"]):
        taus = (f"{rows[index]['tau']:.3f}" for rows in benchmarks.values())
        found.add_row(row["tree"], str(row["nodes"]), *taus)
    return found


def _table(title: str, columns: tuple[str, ...]) -> Table:
    found = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for index, name in enumerate(columns):
        found.add_column(name, justify="right" if index else "left", no_wrap=True)
    return found


def _bounds(value: tuple[float, float] | None) -> str:
    return "-" if value is None else f"[{value[0]:.3f}, {value[1]:.3f}]"


def _signed(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"

"""The table at the end of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from specpilot.cli.console import console
from specpilot.cli.output import number, one_line, say
from specpilot.controller.noise import noise_warning, spell_noise
from specpilot.report.directions import spell_headroom
from specpilot.report.words import headline

MARKS = {"promoted": "+", "not_promoted": "-", "undecided": "?", "void": "!", "closed": "·"}
COLOURS = {"promoted": "green", "void": "red", "undecided": "cyan"}


def print_summary(report: Mapping[str, Any], folder: Path) -> None:
    """Rates per benchmark, gains with intervals, and every direction's verdict."""
    screen = console(110)
    screen.print(_rates(report))
    screen.print(_directions(report))
    noise = report["noise"]
    if noise is not None:
        say(noise_warning(noise) or spell_noise(noise))
    say(
        f"speedup over AR: stock {number(report['stock_speedup_over_ar'], '.2f')}, "
        f"best {number(report['speedup_over_ar'], '.2f')}"
    )
    forcing = report["forcing"]
    if forcing is not None:
        say(
            f"token forcing: {forcing['verdict']}, {forcing['tokens']} tokens, "
            f"mismatches {forcing['mismatch_rate']:.3%} "
            f"(stock {forcing['stock_mismatch_rate']:.3%}), "
            f"{forcing['unexplained']} unexplained events"
        )
    for entry in report["memory"]:
        say(f"memory: {entry['entry']} {'kept' if entry['admitted'] else 'refused'}")
    found = headline(report)
    style = f"bold {COLOURS.get(found.mood, '')}".strip()
    screen.print(Text(f"{found.title}. {found.sentence}", style=style), soft_wrap=True)
    say(
        f"{number(report['seconds'], '.0f')} s, isolation {report['isolation']}; "
        f"report: {one_line(folder / 'index.html')}"
    )


def _rates(report: Mapping[str, Any]) -> Table:
    table = Table(title="tokens per second (τ)", title_justify="left")
    table.add_column("benchmark")
    systems = report["systems"]
    same = systems["best"]["tree_hash"] == systems["stock"]["tree_hash"]
    for name in ("AR", "stock", "best (is stock)" if same else "best", "best / stock, sealed"):
        table.add_column(name, justify="right")
    names = {n: None for s in systems.values() for n in s["tokens_per_second"]["per_benchmark"]}
    for name in names:
        gain = report["gain_over_stock"]["per_benchmark"].get(name)
        cells = [
            f"{number(systems[s]['tokens_per_second']['per_benchmark'].get(name))} "
            f"({number(systems[s]['tau']['per_benchmark'].get(name), '.2f')})"
            for s in ("ar", "stock", "best")
        ]
        table.add_row(name, *cells, _interval(gain))
    cells = [
        f"{number(systems[s]['tokens_per_second']['overall'])} "
        f"({number(systems[s]['tau']['overall'], '.2f')})"
        for s in ("ar", "stock", "best")
    ]
    table.add_row("all", *cells, _interval(report["gain_over_stock"]), end_section=True)
    return table


def _directions(report: Mapping[str, Any]) -> Table:
    table = Table(title="directions", title_justify="left")
    for name in ("", "direction", "factor", "headroom", "verdict", "gain, 95%"):
        table.add_column(name, justify="right" if name == "headroom" else "left")
    for item in report["directions"]:
        verdict = item["verdict"]
        gains = [attempt["gain"] for attempt in item["attempts"] if attempt["gain"] is not None]
        style = COLOURS.get(verdict)
        table.add_row(
            MARKS.get(verdict, " "),
            item["name"],
            item["factor"],
            spell_headroom(item["headroom"], item["headroom_by"]),
            f"{verdict} ({item['reason']})" if item["reason"] else verdict,
            _interval(gains[-1] if gains else None),
            style=style,
        )
    return table


def _interval(gain: Mapping[str, Any] | None) -> str:
    if gain is None or gain.get("point") is None:
        return "-"
    return f"{gain['point']:.3f}x [{gain['low']:.3f}, {gain['high']:.3f}]"

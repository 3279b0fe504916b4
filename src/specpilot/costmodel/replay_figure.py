"""Tokens per step over verified nodes, as the paper's Figure 10 shows them, for any recording."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from specpilot.costmodel.replay_table import Row, play, table
from specpilot.engines.base import Recording
from specpilot.report.charts import Series, line_chart

SHALLOW = 8
"""Positions of the first curve and of the chain: the block that drafters are trained for."""
_NODES = (2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 63, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of the figure."""

    name: str
    rows: tuple[Row, ...]
    reference: bool
    """A level that does not depend on the budget."""


def curves(recordings: Sequence[Recording], positions: int, max_nodes: int) -> list[Curve]:
    """Best-first trees on shallow and full lattices, the shallow chain, the full oracle.

    Args:
        positions: of the full lattice.
        max_nodes: where the curves end, at least 2.
    """
    budgets = sorted({nodes for nodes in _NODES if nodes < max_nodes} | {max_nodes})
    shallow = min(SHALLOW, positions)
    found = [
        _curve(recordings, "best_first", depth, budgets) for depth in sorted({shallow, positions})
    ]
    found.append(_curve(recordings, "chain", shallow, [shallow + 1]))
    found.append(_curve(recordings, "oracle", positions, [positions + 1]))
    return found


def _curve(recordings: Sequence[Recording], tree: str, positions: int, budgets: list[int]) -> Curve:
    groups = [""] * len(recordings)
    played = play(recordings, groups, [tree], budgets, positions)
    rows = table(played, range(len(recordings)))
    name = f"{tree.replace('_', '-')}, {positions} positions"
    return Curve(name, tuple(rows), reference=tree in ("chain", "oracle"))


def figure_svg(found: Sequence[Curve], title: str) -> str:
    """The figure; levels are dashed lines over the budgets of the curves."""
    budgets = [row.nodes for curve in found if not curve.reference for row in curve.rows]
    ends = min(budgets), max(budgets)
    series = [
        Series(curve.name, tuple((x, curve.rows[0].tau) for x in ends), dashed=True)
        if curve.reference
        else Series(curve.name, tuple((row.nodes, row.tau) for row in curve.rows))
        for curve in found
    ]
    return line_chart(title, "verified nodes N", "τ", series)


def figure_csv(found: Sequence[Curve]) -> str:
    """The same numbers with their intervals; a level has no number of nodes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["curve", "nodes", "tau", "low", "high", "steps", "requests"])
    for curve in found:
        for row in curve.rows:
            nodes = "" if curve.reference else row.nodes
            low, high = row.interval or ("", "")
            writer.writerow([curve.name, nodes, row.tau, low, high, row.steps, row.requests])
    return text.getvalue()

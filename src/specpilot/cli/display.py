"""What a person or a program sees while a run goes on: one live table, plain lines, or JSON."""

from collections.abc import Sequence
from typing import Protocol

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specpilot.cli.output import is_terminal
from specpilot.controller.journal import JournalLine
from specpilot.loop.state import Direction, RunState, apply
from specpilot.report.lines import PHASES, SIGNS, describe

STYLES = {"+": "green", "-": "yellow", "?": "cyan", "!": "red", "·": "dim", ">": "bold"}
SHOWN_LINES = 5


class Display(Protocol):
    """Shows a run's lines as they come."""

    def show(self, lines: Sequence[JournalLine], seconds: float) -> None:
        """Called a few times a second; `seconds` is the time since the command started."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def choose_display(*, json_lines: bool) -> Display:
    """JSON when asked for, a live table for a person, plain lines for everything else."""
    if json_lines:
        return JsonLines()
    return LiveTable() if is_terminal() else PlainLines()


class JsonLines:
    """Every journal line as it is."""

    def show(self, lines: Sequence[JournalLine], seconds: float) -> None:
        """See `Display.show`."""
        for line in lines:
            typer.echo(line.model_dump_json())

    def close(self) -> None:
        """Nothing to end."""


class PlainLines:
    """One line of text per event that matters."""

    def show(self, lines: Sequence[JournalLine], seconds: float) -> None:
        """See `Display.show`."""
        for line in lines:
            text = describe(line.event())
            if text is not None:
                typer.echo(f"{line.time[11:19]}  {text}")

    def close(self) -> None:
        """Nothing to end."""


class LiveTable:
    """Directions, leases, time and the last verdict, redrawn in place."""

    def __init__(self) -> None:
        self._state = RunState()
        self._recent: list[str] = []
        self._live = Live(console=Console(), refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, lines: Sequence[JournalLine], seconds: float) -> None:
        """See `Display.show`."""
        for line in lines:
            event = line.event()
            self._state = apply(self._state, event)
            text = describe(event)
            if text is not None:
                self._recent = [*self._recent, text][-SHOWN_LINES:]
        self._live.update(render(self._state, self._recent, seconds))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def render(state: RunState, recent: Sequence[str], seconds: float) -> Group:
    """The live table of a state."""
    current = state.round
    phase = f"round {current.number}, {PHASES[current.phase]}" if current else "setting up"
    leases = ", ".join(f"{d}: {x.holder} ({x.purpose})" for d, x in sorted(state.leases.items()))
    head = Text(f"{phase}   {seconds:.0f} s   {leases or 'no lease'}", style="bold")
    head.append(f"   {state.spent_usd():.2f} USD" if state.spent_usd() else "", style="dim")
    table = Table(expand=True, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("", "direction", "factor", "headroom", "attempts", "last verdict"):
        table.add_column(name, no_wrap=name != "last verdict")
    for item in state.directions.values():
        mark, verdict = mark_of(item)
        headroom = item.closed.headroom if item.closed else item.plan.expected_headroom
        table.add_row(
            Text(mark, style=STYLES[mark]),
            item.plan.id,
            str(item.plan.factor),
            "-" if headroom is None else f"{headroom:+.1%}",
            str(len(item.attempts)),
            Text(verdict, style=STYLES[mark]),
        )
    return Group(head, table, *(Text(line, style="dim") for line in recent))


def mark_of(item: Direction) -> tuple[str, str]:
    """A sign and a few words for a direction."""
    last = item.last_verdict()
    if item.promoted is not None:
        gain = item.promoted.gain.overall
        return "+", f"promoted {gain.point:.3f}x [{gain.low:.3f}, {gain.high:.3f}]"
    if last is not None:
        shown = "" if last.gain is None else f" {last.gain.overall.point:.3f}x"
        return SIGNS[last.kind], f"{last.kind} ({last.reason}){shown}"
    if item.closed is not None:
        return "·", f"closed ({item.closed.reason})"
    return ">", "working" if item.agent_starts else "waiting"

"""What a person or a program sees while a run goes on: one live table, plain lines, or JSON."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from specpilot.cli.console import console
from specpilot.cli.output import is_terminal, json_text, say
from specpilot.cli.watching import Watch, utc_now
from specpilot.controller.journal import JournalLine
from specpilot.controller.noise import noise_warning, spell_noise
from specpilot.core.verdict import VerdictKind
from specpilot.loop.state import Direction, RunState
from specpilot.report.directions import headroom_of, spell_headroom
from specpilot.report.lines import OUTCOMES, PHASES, SIGNS

STYLES = {"+": "green", "-": "yellow", "?": "cyan", "!": "red", "·": "dim", ">": "bold"}
HEARTBEAT_SECONDS = 20.0
"""Silence after which plain lines say that the run is alive."""


class Display(Protocol):
    """Shows a run's lines as they come."""

    def show(self, lines: Sequence[JournalLine]) -> None:
        """Called a few times a second, with what was written since."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def choose_display(watch: Watch, *, json_lines: bool) -> Display:
    """JSON when asked for, a live table for a person, plain lines for everything else."""
    if json_lines:
        return JsonLines()
    return LiveTable(watch) if is_terminal() else PlainLines(watch)


class JsonLines:
    """Every journal line as it is."""

    def show(self, lines: Sequence[JournalLine]) -> None:
        """See `Display.show`."""
        for line in lines:
            say(json_text(line.to_json(), indent=None))

    def close(self) -> None:
        """Nothing to end."""


class PlainLines:
    """One line of text per event that matters, and a sign of life where none comes for long."""

    def __init__(self, watch: Watch, now: Callable[[], datetime] = utc_now) -> None:
        self._watch = watch
        self._now = now
        self._said = now()

    def show(self, lines: Sequence[JournalLine]) -> None:
        """See `Display.show`."""
        for line in lines:
            text = self._watch.add(line)
            if text is not None:
                self._say(line.time[11:19], text)
        now = self._now()
        if (now - self._said).total_seconds() >= HEARTBEAT_SECONDS:
            doing = self._watch.doing() or "at work"
            self._say(f"{now:%H:%M:%S}", f"... {doing}; {self._watch.times()}")

    def close(self) -> None:
        """Nothing to end."""

    def _say(self, clock: str, text: str) -> None:
        say(f"{clock}  {text}")
        self._said = self._now()


class LiveTable:
    """Directions, what is measured, time and the last lines, redrawn in place."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._live = Live(console=console(), refresh_per_second=4, transient=True)
        self._live.start()

    def show(self, lines: Sequence[JournalLine]) -> None:
        """See `Display.show`."""
        for line in lines:
            self._watch.add(line)
        self._live.update(render(self._watch))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()


def render(watch: Watch) -> Group:
    """The live table of a run at this moment."""
    state = watch.state
    current = state.round
    phase = f"round {current.number}, {PHASES[current.phase]}" if current else "setting up"
    if state.finished is not None:
        phase = f"finished: {OUTCOMES[state.finished.outcome]}"
    money = f"   {state.spent_usd():.2f} USD" if state.spent_usd() else ""
    head = Text(f"{phase}   {watch.times()}{money}", style="bold")
    rows: list[Text | Table] = [head]
    if doing := watch.doing():
        rows.append(Text(doing))
    if state.noise is not None:
        warning = noise_warning(state.noise.noise)
        style = "bold red" if warning else "dim"
        rows.append(Text(warning or spell_noise(state.noise.noise), style=style))
    if state.directions:
        rows.append(_directions(state))
    return Group(*rows, *(Text(line, style="dim") for line in watch.recent))


def _directions(state: RunState) -> Table:
    table = Table(expand=True, box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("", "direction", "factor", "headroom", "attempts", "last verdict"):
        table.add_column(name, no_wrap=name != "last verdict")
    for item in state.directions.values():
        mark, verdict = mark_of(item)
        table.add_row(
            Text(mark, style=STYLES[mark]),
            item.plan.id,
            str(item.plan.factor),
            spell_headroom(*headroom_of(item)),
            str(len(item.attempts)),
            Text(verdict, style=STYLES[mark]),
        )
    return table


def mark_of(item: Direction) -> tuple[str, str]:
    """A sign and a few words for a direction."""
    last = item.last_verdict()
    if item.promoted is not None:
        gain = item.promoted.gain.overall
        return "+", f"promoted {gain.point:.3f}x [{gain.low:.3f}, {gain.high:.3f}]"
    if last is not None:
        shown = "" if last.gain is None else f" {last.gain.overall.point:.3f}x"
        if last.kind is VerdictKind.PROMOTED:
            return "?", f"gains{shown}, not submitted"
        return SIGNS[last.kind], f"{last.kind} ({last.reason}){shown}"
    if item.closed is not None:
        return "·", f"closed ({item.closed.reason})"
    return ">", "working" if item.agent_starts else "waiting"

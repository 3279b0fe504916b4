"""What a watcher of a run knows at a moment: its state, its times, what is measured now."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from specpilot.cli.estimate import measured_unit, remaining, spell_seconds
from specpilot.controller.journal import JournalLine
from specpilot.controller.progress import read_standing
from specpilot.loop.state import RunState, apply
from specpilot.report.lines import describe
from specpilot.report.standing import spell_leases, spell_standing

SHOWN_LINES = 5


def utc_now() -> datetime:
    """The wall clock, which a journal's times are of."""
    return datetime.now(UTC)


class Watch:
    """Folds a run's lines as they come, and says where the run stands."""

    def __init__(
        self,
        folder: Path,
        *,
        unit: float | None = None,
        live: bool = True,
        begun: datetime | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Watch a run folder.

        Args:
            unit: expected seconds of one paired run, until the run has measured it.
            live: whether a controller is at work, so that time goes on after the last line.
            begun: when it was started, where that is known: a pause before is no work.
        """
        self.state = RunState()
        self.recent: list[str] = []
        self.last: datetime | None = None
        """When the last line was written."""
        self._folder = folder
        self._unit = unit
        self._live = live
        self._begun = begun
        self._now = now
        self._leased: datetime | None = None
        self._worked = 0.0

    def add(self, line: JournalLine) -> str | None:
        """Fold one line; gives its text for people, if it has one."""
        event, at = line.event(), datetime.fromisoformat(line.time)
        text = describe(event, self.state)
        self.state = apply(self.state, event)
        # A pause before a resumption is no work.
        if self.last is not None and line.kind != "controller_started":
            self._worked += (at - self.last).total_seconds()
        self.last = at
        if line.kind == "lease_taken":
            self._leased = at
        if text is not None:
            self.recent = [*self.recent, text][-SHOWN_LINES:]
        return text

    def quiet_seconds(self) -> float:
        """Since the last line."""
        if self.last is None:
            return 0.0
        since = self.last if self._begun is None else max(self.last, self._begun)
        return max((self._now() - since).total_seconds(), 0.0)

    def worked_seconds(self) -> float:
        """In which a controller was at work."""
        return self._worked + (self.quiet_seconds() if self._live else 0.0)

    def times(self) -> str:
        """Elapsed, and what is left of it by the plan's estimate."""
        elapsed = spell_seconds(self.worked_seconds())
        if not self._live or self.state.finished is not None:
            return f"{elapsed} of work"
        elapsed = f"{elapsed} so far"
        started, unit = self.state.started, measured_unit(self.state) or self._unit
        if started is None or unit is None:
            return elapsed
        left = remaining(started.deployment, self.state, unit) - self.quiet_seconds()
        if left <= 0:
            return f"{elapsed}, longer than expected"
        return f"{elapsed}, about {spell_seconds(left)} left"

    def doing(self) -> str:
        """What is measured now, from leases and the controller's own hint."""
        leases = spell_leases(self.state)
        if not self.state.leases or not self._live:
            return leases
        standing = read_standing(self._folder)
        if standing is None or self._is_older(standing.at):
            return leases
        return f"{leases}, {spell_standing(standing, self.state)}"

    def _is_older(self, at: str) -> bool:
        """Whether a hint, in whole seconds, is from before the lease: about other work."""
        leased = self._leased
        return leased is not None and datetime.fromisoformat(at) < leased.replace(microsecond=0)

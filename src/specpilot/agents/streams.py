"""Turning what a program prints into agent events."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    parse_event,
)

SHORT_CHARACTERS = 400


def shorten(text: str) -> str:
    """One line of at most 400 characters."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT_CHARACTERS else line[: SHORT_CHARACTERS - 1] + "…"


def parse_object(line: str) -> dict[str, Any] | None:
    """A line as a JSON object; None when it is something else."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class StreamParser(Protocol):
    """Reads one program's standard output."""

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """Events of one line; none when the line carries none."""
        ...

    def finish(self, status: int | None) -> AgentEvent:
        """The final event of a program that closed its output without giving one.

        Args:
            status: its exit status; None when it closed its output and ran on.
        """
        ...


class EventLines:
    """Our own agents print events as JSON lines; any other line is text.

    A program of the user's may print the same events, or none at all.
    """

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """An event, or the line as text."""
        if not line.strip():
            return ()
        return (parse_event(line) or TextEvent(text=shorten(line)),)

    def finish(self, status: int | None) -> AgentEvent:
        """Exit status 0 is a result: what was achieved is in the controller's journal."""
        if status == 0:
            return ResultEvent(summary="exited")
        return exit_error(status)


def exit_error(status: int | None) -> ErrorEvent:
    """A program that exited badly, or closed its output and ran on."""
    if status is None:
        return ErrorEvent(
            code=AgentErrorCode.MALFORMED_STREAM,
            message="the program closed its output without a result and ran on",
        )
    return ErrorEvent(
        code=AgentErrorCode.EXIT_STATUS,
        message=f"the program exited with status {status}; its log is beside the brief",
    )

"""One direction as seen by an agent of ours: its brief, the controller, and its event stream."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specpilot.agents.base import BRIEF_VARIABLE, Brief
from specpilot.agents.ctl import call, socket_from_environment
from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    format_event,
)
from specpilot.agents.streams import shorten
from specpilot.core.errors import ExitCode, Refused, SpecPilotError
from specpilot.core.record import canonical_json


class Session:
    """Asks the controller and prints events."""

    def __init__(self, brief: Brief, socket: Path, emit: Callable[[AgentEvent], None]) -> None:
        self.brief = brief
        self._socket = socket
        self._emit = emit

    def note(self, text: str) -> None:
        """Say something that a reader of the journal should see."""
        self._emit(TextEvent(text=text))

    def ask(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """One operation of the controller.

        Raises:
            SpecPilotError: the controller refused, or is gone.
        """
        spelled = shorten(canonical_json(arguments))
        self._emit(ToolCallEvent(tool=f"specpilot ctl {operation}", arguments=spelled))
        return call(self._socket, operation, arguments)


def load_brief() -> Brief:
    """The brief that the environment names.

    Raises:
        Refused: there is none, or it is not a brief.
    """
    path = os.environ.get(BRIEF_VARIABLE)
    if not path:
        raise Refused("is not set", where=BRIEF_VARIABLE, fix="let the loop start this agent")
    try:
        return Brief.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise Refused(
            "is not a readable brief", where=path, fix="let the loop start this agent"
        ) from error


def run_session(work: Callable[[Session], str]) -> int:
    """Run an agent of ours as a program; returns its exit status.

    Args:
        work: does the direction's work and returns its summary.
    """
    try:
        session = Session(load_brief(), socket_from_environment(), _print)
        _print(ResultEvent(summary=shorten(work(session))))
    except SpecPilotError as error:
        if error.exit_code is ExitCode.BUDGET_SPENT:
            _print(ResultEvent(summary=shorten(str(error))))
            return int(ExitCode.OK)
        _print(ErrorEvent(code=AgentErrorCode.PROGRAM_FAILED, message=shorten(str(error))))
        return int(error.exit_code)
    return int(ExitCode.OK)


def _print(event: AgentEvent) -> None:
    sys.stdout.write(format_event(event) + "\n")
    sys.stdout.flush()

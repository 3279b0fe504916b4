"""What an agent's stream consists of; every stream ends with exactly one result or error."""

from enum import StrEnum
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from specpilot.core.numbers import Count, NonNegative
from specpilot.core.record import Record, canonical_json


class TextEvent(Record):
    """Something the agent said: a note, never evidence."""

    kind: Literal["text"] = "text"
    text: str


class ToolCallEvent(Record):
    """The agent used a tool of its own or asked the controller."""

    kind: Literal["tool_call"] = "tool_call"
    tool: str
    arguments: str
    """One line, shortened."""


class UsageEvent(Record):
    """Tokens that a language model read and wrote since the last usage event."""

    kind: Literal["usage"] = "usage"
    model: str | None = None
    input_tokens: Count
    cached_input_tokens: Count = 0
    output_tokens: Count


class CostEvent(Record):
    """Money spent so far by this agent, as its program states it."""

    kind: Literal["cost"] = "cost"
    total_usd: NonNegative


class ResultEvent(Record):
    """The agent ended by itself. Whether it achieved anything is in the controller's journal."""

    kind: Literal["result"] = "result"
    summary: str


class AgentErrorCode(StrEnum):
    """Why an agent's stream ended without a result."""

    FIRST_EVENT_DEADLINE = "first_event_deadline"
    DEADLINE = "deadline"
    MAX_USD = "max_usd"
    EXIT_STATUS = "exit_status"
    MALFORMED_STREAM = "malformed_stream"
    PROGRAM_MISSING = "program_missing"
    PROGRAM_FAILED = "program_failed"
    STOPPED = "stopped"


class ErrorEvent(Record):
    """The agent ended, or was ended, without a result."""

    kind: Literal["error"] = "error"
    code: AgentErrorCode
    message: str


AgentEvent = TextEvent | ToolCallEvent | UsageEvent | CostEvent | ResultEvent | ErrorEvent


def is_terminal(event: AgentEvent) -> bool:
    """Whether nothing may follow this event."""
    return isinstance(event, ResultEvent | ErrorEvent)


@cache
def _adapter() -> TypeAdapter[AgentEvent]:
    return TypeAdapter(Annotated[AgentEvent, Field(discriminator="kind")])


def parse_event(line: str) -> AgentEvent | None:
    """One JSON line as an event; None when it is not one."""
    try:
        return _adapter().validate_json(line)
    except ValidationError:
        return None


def format_event(event: AgentEvent) -> str:
    """One event as one JSON line, without the newline."""
    return canonical_json(event.to_json())

"""Events of `codex exec --json`: one JSON object a line. The program states usage, never money."""

import json
from collections.abc import Sequence
from typing import Any

from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
)
from specpilot.agents.streams import exit_error, parse_object, shorten


class CodexStream:
    """Parser of one run of the program. A turn's end is not the end of the program's output."""

    def __init__(self) -> None:
        self._last_text = "finished"
        self._turn_completed = False

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """Events of one line; kinds that carry nothing for the journal give none."""
        message = parse_object(line)
        if message is None:
            return (TextEvent(text=shorten(line)),) if line.strip() else ()
        match message.get("type"):
            case "thread.started":
                return (TextEvent(text=f"started, thread {message.get('thread_id')}"),)
            case "item.completed":
                return self._item(message.get("item") or {})
            case "turn.completed":
                self._turn_completed = True
                return (_usage(message.get("usage") or {}),)
            case "turn.failed":
                text = str((message.get("error") or {}).get("message", "the turn failed"))
                return (ErrorEvent(code=AgentErrorCode.PROGRAM_FAILED, message=shorten(text)),)
            case "error":
                # Reconnects are reported the same way; only `turn.failed` or the exit status ends.
                return (TextEvent(text=shorten(f"error: {message.get('message')}")),)
            case _:
                return ()

    def finish(self, status: int | None) -> AgentEvent:
        """A completed turn and exit status 0 are a result."""
        if status == 0 and self._turn_completed:
            return ResultEvent(summary=self._last_text)
        if status == 0:
            return ErrorEvent(
                code=AgentErrorCode.MALFORMED_STREAM, message="ended without a completed turn"
            )
        return exit_error(status)

    def _item(self, item: dict[str, Any]) -> Sequence[AgentEvent]:
        match item.get("type"):
            case "agent_message":
                self._last_text = shorten(str(item.get("text", "")))
                return (TextEvent(text=self._last_text),)
            case "command_execution":
                return (ToolCallEvent(tool="shell", arguments=shorten(str(item.get("command")))),)
            case "file_change":
                paths = [str(change.get("path")) for change in item.get("changes") or []]
                return (ToolCallEvent(tool="edit", arguments=shorten(", ".join(paths))),)
            case "mcp_tool_call" | "web_search":
                spelled = shorten(json.dumps(item, ensure_ascii=False))
                return (ToolCallEvent(tool=str(item.get("type")), arguments=spelled),)
            case _:
                return ()


def _usage(usage: dict[str, Any]) -> UsageEvent:
    return UsageEvent(
        input_tokens=int(usage.get("input_tokens") or 0),
        cached_input_tokens=int(usage.get("cached_input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
    )

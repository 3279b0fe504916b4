"""Events of `claude -p --output-format stream-json`: one JSON object a line.

An assistant message may come in several lines that repeat its usage, so usage is counted once per
message id and settled by the total of the final line.
"""

import json
from collections.abc import Sequence
from typing import Any

from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    CostEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
)
from specpilot.agents.streams import exit_error, parse_object, shorten


class ClaudeStream:
    """Parser of one run of the program."""

    def __init__(self) -> None:
        self._model: str | None = None
        self._counted: set[str] = set()
        self._sum = UsageEvent(input_tokens=0, output_tokens=0)

    def feed(self, line: str) -> Sequence[AgentEvent]:
        """Events of one line; kinds that carry nothing for the journal give none."""
        message = parse_object(line)
        if message is None:
            return (TextEvent(text=shorten(line)),) if line.strip() else ()
        match message.get("type"):
            case "system" if message.get("subtype") == "init":
                self._model = message.get("model")
                return (TextEvent(text=f"started, model {self._model}"),)
            case "assistant":
                return self._assistant(message.get("message") or {})
            case "result":
                return self._result(message)
            case _:
                return ()

    def finish(self, status: int | None) -> AgentEvent:
        """The program ends its stream with a result; without one it failed."""
        if status == 0:
            return ErrorEvent(
                code=AgentErrorCode.MALFORMED_STREAM, message="ended without a result"
            )
        return exit_error(status)

    def _assistant(self, message: dict[str, Any]) -> Sequence[AgentEvent]:
        events: list[AgentEvent] = []
        for block in message.get("content") or []:
            if block.get("type") == "text" and block.get("text", "").strip():
                events.append(TextEvent(text=shorten(block["text"])))
            elif block.get("type") == "tool_use":
                spelled = shorten(json.dumps(block.get("input"), ensure_ascii=False))
                events.append(ToolCallEvent(tool=str(block.get("name")), arguments=spelled))
        identity, usage = message.get("id"), message.get("usage")
        if usage and identity and identity not in self._counted:
            self._counted.add(identity)
            events.append(self._count(_usage(usage, message.get("model") or self._model)))
        return events

    def _result(self, message: dict[str, Any]) -> Sequence[AgentEvent]:
        events: list[AgentEvent] = []
        total = _usage(message.get("usage") or {}, self._model)
        rest = UsageEvent(
            model=self._model,
            input_tokens=max(total.input_tokens - self._sum.input_tokens, 0),
            cached_input_tokens=max(total.cached_input_tokens - self._sum.cached_input_tokens, 0),
            output_tokens=max(total.output_tokens - self._sum.output_tokens, 0),
        )
        if rest.input_tokens or rest.output_tokens or rest.cached_input_tokens:
            events.append(self._count(rest))
        if message.get("total_cost_usd") is not None:
            events.append(CostEvent(total_usd=float(message["total_cost_usd"])))
        text = shorten(str(message.get("result") or message.get("subtype") or ""))
        if message.get("is_error") or message.get("subtype") != "success":
            limit = message.get("subtype") == "error_max_budget_usd"
            code = AgentErrorCode.MAX_USD if limit else AgentErrorCode.PROGRAM_FAILED
            return (*events, ErrorEvent(code=code, message=text))
        return (*events, ResultEvent(summary=text))

    def _count(self, usage: UsageEvent) -> UsageEvent:
        self._sum = UsageEvent(
            input_tokens=self._sum.input_tokens + usage.input_tokens,
            cached_input_tokens=self._sum.cached_input_tokens + usage.cached_input_tokens,
            output_tokens=self._sum.output_tokens + usage.output_tokens,
        )
        return usage


def _usage(usage: dict[str, Any], model: str | None) -> UsageEvent:
    cached = int(usage.get("cache_read_input_tokens") or 0)
    written = int(usage.get("cache_creation_input_tokens") or 0)
    return UsageEvent(
        model=model,
        input_tokens=int(usage.get("input_tokens") or 0) + written + cached,
        cached_input_tokens=cached,
        output_tokens=int(usage.get("output_tokens") or 0),
    )

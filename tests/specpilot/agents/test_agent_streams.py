"""Recorded streams of the preset programs, parsed line by line."""

import json
from pathlib import Path

import pytest

from specpilot.agents.claude_stream import ClaudeStream
from specpilot.agents.codex_stream import CodexStream
from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    CostEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
    format_event,
    is_terminal,
    parse_event,
)
from specpilot.agents.streams import EventLines, StreamParser

STREAMS = Path(__file__).parent / "streams"


def fed(parser: StreamParser, name: str) -> list[AgentEvent]:
    """All events of a recorded stream."""
    lines = (STREAMS / name).read_text(encoding="utf-8").splitlines()
    return [event for line in lines for event in parser.feed(line)]


def test_claude_stream_gives_text_tools_usage_cost_and_one_result() -> None:
    events = fed(ClaudeStream(), "claude.jsonl")
    assert events[-1] == ResultEvent(summary="Submitted the tree.")
    assert sum(is_terminal(event) for event in events) == 1
    assert CostEvent(total_usd=0.0421) in events
    tools = [event for event in events if isinstance(event, ToolCallEvent)]
    assert [tool.tool for tool in tools] == ["Bash"]
    assert "nodes=32" in tools[0].arguments


def test_claude_usage_of_a_repeated_message_counts_once_and_sums_to_the_total() -> None:
    usage = [e for e in fed(ClaudeStream(), "claude.jsonl") if isinstance(e, UsageEvent)]
    assert sum(event.input_tokens for event in usage) == 13 + 200 + 210
    assert sum(event.cached_input_tokens for event in usage) == 210
    assert sum(event.output_tokens for event in usage) == 40


@pytest.mark.parametrize(
    ("subtype", "code"),
    [
        ("error_max_budget_usd", AgentErrorCode.MAX_USD),
        ("error_during_execution", AgentErrorCode.PROGRAM_FAILED),
    ],
)
def test_claude_result_that_is_an_error(subtype: str, code: AgentErrorCode) -> None:
    line = json.dumps({"type": "result", "subtype": subtype, "is_error": True, "usage": {}})
    (event,) = ClaudeStream().feed(line)
    assert isinstance(event, ErrorEvent)
    assert event.code is code


def test_codex_stream_gives_tools_and_usage_and_its_last_message_is_the_result() -> None:
    parser = CodexStream()
    events = fed(parser, "codex.jsonl")
    assert not any(is_terminal(event) for event in events)
    assert UsageEvent(input_tokens=900, cached_input_tokens=700, output_tokens=55) in events
    assert [e.tool for e in events if isinstance(e, ToolCallEvent)] == ["shell", "edit"]
    assert parser.finish(0) == ResultEvent(summary="Submitted the tree.")


def test_codex_failed_turn_is_an_error_and_a_reconnect_is_not() -> None:
    parser = CodexStream()
    (note,) = parser.feed('{"type":"error","message":"Reconnecting"}')
    assert isinstance(note, TextEvent)
    (failed,) = parser.feed('{"type":"turn.failed","error":{"message":"quota"}}')
    assert failed == ErrorEvent(code=AgentErrorCode.PROGRAM_FAILED, message="quota")


@pytest.mark.parametrize("parser", [ClaudeStream(), CodexStream()])
def test_a_stream_cut_off_is_never_a_result(parser: StreamParser) -> None:
    for status in (0, 1, None):
        assert isinstance(parser.finish(status), ErrorEvent)


@pytest.mark.parametrize("parser", [ClaudeStream(), CodexStream(), EventLines()])
@pytest.mark.parametrize("line", ["not json", "[1, 2]", '"text"', '{"type": 3}', "{}", ""])
def test_strange_lines_do_not_break_a_parser(parser: StreamParser, line: str) -> None:
    assert not any(is_terminal(event) for event in parser.feed(line))


@pytest.mark.parametrize(
    "event",
    [
        TextEvent(text="τ ↑"),
        ToolCallEvent(tool="x", arguments="{}"),
        UsageEvent(input_tokens=1, output_tokens=2),
        CostEvent(total_usd=0.5),
        ResultEvent(summary="done"),
        ErrorEvent(code=AgentErrorCode.DEADLINE, message="late"),
    ],
)
def test_an_event_survives_its_line(event: AgentEvent) -> None:
    assert "\n" not in format_event(event)
    assert parse_event(format_event(event)) == event
    assert EventLines().feed(format_event(event)) == (event,)

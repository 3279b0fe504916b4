"""What every agent owes the loop, whatever its program does."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from specpilot.agents.base import AgentLimits, Brief, Workspace
from specpilot.agents.command import claude_command, codex_command, command_agent, render_brief
from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    CostEvent,
    ErrorEvent,
    ResultEvent,
    TextEvent,
    is_terminal,
)
from specpilot.agents.factory import playbook_agent, scripted_agent
from specpilot.agents.process import MAX_LINE_BYTES
from specpilot.agents.runner import SubprocessAgent
from specpilot.core.deployment import parse_deployment
from specpilot.core.measurement import Isolation
from specpilot.loop.workspace import workspaces
from specpilot.sandbox.probe import probe

LIMITS = AgentLimits(deadline_seconds=2.5, first_event_seconds=2.5, grace_seconds=0.3)
BRIEF = Brief(
    direction_id="d1",
    name="Direction",
    mechanism="m",
    factor="tau",
    expected_headroom=0.1,
    base_commit="0" * 40,
    grid=({"nodes": 32},),
)


def workspace_in(folder: Path) -> Workspace:
    """A worktree, a state folder and a socket that nobody serves."""
    for name in ("worktree", "state"):
        (folder / name).mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "MARK": str(folder)}
    return Workspace(
        folder / "worktree", folder / "state", folder / "no.sock", environment=environment
    )


def program(source: str) -> SubprocessAgent:
    """An agent that is a few lines of Python."""
    return command_agent([sys.executable, "-c", source])


def events_of(
    agent: SubprocessAgent, workspace: Workspace, limits: AgentLimits = LIMITS
) -> list[AgentEvent]:
    """The whole stream."""

    async def collect() -> list[AgentEvent]:
        return [event async for event in agent.start(BRIEF, workspace, limits)]

    return asyncio.run(collect())


def left_of(folder: Path) -> list[psutil.Process]:
    """Processes that still carry the workspace's mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK") == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def code_of(events: Sequence[AgentEvent]) -> AgentErrorCode | None:
    """Code of the final event; None when it is a result."""
    final = events[-1]
    return final.code if isinstance(final, ErrorEvent) else None


FORK = "import os, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\n time.sleep(600)\n"
RESULT = """print('{"kind":"result","summary":"done"}', flush=True)\n"""
PROGRAMS: dict[str, tuple[str, AgentErrorCode | None]] = {
    "says nothing and exits": ("", None),
    "prints text": ("print('hello')", None),
    "gives a result": (RESULT, None),
    "fails": ("import sys; print('x'); sys.exit(3)", AgentErrorCode.EXIT_STATUS),
    "dies by a signal": (
        "import os; print('x', flush=True); os.kill(os.getpid(), 9)",
        AgentErrorCode.EXIT_STATUS,
    ),
    "leaves children in sessions of their own": (FORK + "print('x')", None),
    "lives on after its result": (RESULT + "import time; time.sleep(600)", None),
    "ignores the order to end": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + RESULT
        + "time.sleep(600)",
        None,
    ),
    "writes on after its result": (RESULT + "while True: print('x' * 1000)", None),
    "closes its output and runs on": (
        "import os, time; os.write(1, b'x\\n'); os.close(1); time.sleep(600)",
        AgentErrorCode.DEADLINE,
    ),
    "reads its input": ("import sys; print(repr(sys.stdin.read()))", None),
    "prints half a line": ("import sys; sys.stdout.write('half')", None),
    "prints bytes that are not text": (
        "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\n')",
        None,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_final_event_comes_last_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    source, code = PROGRAMS[name]
    events = events_of(program(source), workspace_in(tmp_path))
    assert [is_terminal(event) for event in events] == [False] * (len(events) - 1) + [True]
    assert code_of(events) is code
    assert left_of(tmp_path) == []


def test_a_silent_program_is_started_once_more(tmp_path: Path) -> None:
    source = (
        "import pathlib, time\nmark = pathlib.Path('started')\n"
        "if mark.exists(): print('hello', flush=True)\n"
        "else: mark.touch(); time.sleep(600)"
    )
    limits = LIMITS.model_copy(update={"first_event_seconds": 0.7})
    events = events_of(program(source), workspace_in(tmp_path), limits)
    assert code_of(events) is None
    assert any(isinstance(e, TextEvent) and "once more" in e.text for e in events)


def test_a_program_that_stays_silent_is_an_error(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"first_event_seconds": 0.4})
    events = events_of(program("import time; time.sleep(600)"), workspace_in(tmp_path), limits)
    assert code_of(events) is AgentErrorCode.FIRST_EVENT_DEADLINE
    assert left_of(tmp_path) == []


def test_the_deadline_ends_a_program_that_talks(tmp_path: Path) -> None:
    source = "import time\nwhile True: print('x', flush=True); time.sleep(0.05)"
    limits = LIMITS.model_copy(update={"deadline_seconds": 0.6})
    began = time.monotonic()
    events = events_of(program(source), workspace_in(tmp_path), limits)
    assert code_of(events) is AgentErrorCode.DEADLINE
    assert time.monotonic() - began < 4
    assert left_of(tmp_path) == []


def test_a_line_without_end_is_an_error(tmp_path: Path) -> None:
    source = f"import sys\nsys.stdout.write('x' * {MAX_LINE_BYTES + 2})\nsys.stdout.flush()\n"
    events = events_of(program(source + "import time; time.sleep(600)"), workspace_in(tmp_path))
    assert code_of(events) is AgentErrorCode.MALFORMED_STREAM


def test_a_missing_program_says_what_to_do(tmp_path: Path) -> None:
    events = events_of(command_agent(["no-such-agent"]), workspace_in(tmp_path))
    assert code_of(events) is AgentErrorCode.PROGRAM_MISSING
    assert "install" in events[-1].message


def test_stop_ends_a_running_program(tmp_path: Path) -> None:
    agent = program("import time\nprint('x', flush=True); time.sleep(600)")

    async def run() -> list[AgentEvent]:
        found = []
        async for event in agent.start(BRIEF, workspace_in(tmp_path), LIMITS):
            found.append(event)
            await agent.stop()
        return found

    assert code_of(asyncio.run(run())) is AgentErrorCode.STOPPED
    assert left_of(tmp_path) == []


def test_leaving_the_stream_ends_the_program(tmp_path: Path) -> None:
    async def run() -> None:
        agent = program("import time\nprint('x', flush=True); time.sleep(600)")
        stream = agent.start(BRIEF, workspace_in(tmp_path), LIMITS)
        await anext(stream)
        await stream.aclose()

    asyncio.run(run())
    assert left_of(tmp_path) == []


def test_spending_over_the_limit_ends_the_program(tmp_path: Path) -> None:
    source = (
        """print('{"kind":"cost","total_usd":2.5}', flush=True)\nimport time; time.sleep(600)"""
    )
    limits = LIMITS.model_copy(update={"max_usd": 2.0})
    events = events_of(program(source), workspace_in(tmp_path), limits)
    assert code_of(events) is AgentErrorCode.MAX_USD


def test_a_cost_that_was_not_stated_counts_at_the_limit(tmp_path: Path) -> None:
    limits = LIMITS.model_copy(update={"max_usd": 2.0})
    events = events_of(program("print('hello')"), workspace_in(tmp_path), limits)
    assert CostEvent(total_usd=2.0) in events


def test_the_brief_reaches_the_program_in_both_forms(tmp_path: Path) -> None:
    source = (
        "import json, os, sys\n"
        "brief = json.load(open(os.environ['SPECPILOT_BRIEF']))\n"
        "print(brief['direction_id'], os.environ['SPECPILOT_SOCKET'])\n"
        "print(sys.argv[-1].splitlines()[0])\n"
    )
    workspace = workspace_in(tmp_path)
    texts = [e.text for e in events_of(program(source), workspace) if isinstance(e, TextEvent)]
    assert texts == [f"d1 {workspace.socket}", "# Direction d1: Direction"]


def test_the_rendered_brief_names_rules_options_and_operations() -> None:
    text = render_brief(BRIEF)
    assert "`nodes = 32`" in text
    assert "at least 3%" in text
    assert "ctl OPERATION" in text


def test_presets_keep_their_own_sandbox_unless_ours_is_around_them(tmp_path: Path) -> None:
    open_space = workspace_in(tmp_path)
    ours = Workspace(tmp_path, tmp_path, tmp_path, prefix=("bwrap", "--"))
    limits = LIMITS.model_copy(update={"max_usd": 1.5})
    assert "--dangerously-skip-permissions" not in claude_command(BRIEF, open_space, limits)
    assert "--dangerously-skip-permissions" in claude_command(BRIEF, ours, limits)
    assert "1.50" in claude_command(BRIEF, ours, limits)
    assert "workspace-write" in codex_command(BRIEF, open_space, limits)
    assert "--dangerously-bypass-approvals-and-sandbox" in codex_command(BRIEF, ours, limits)


def scripted(folder: Path) -> SubprocessAgent:
    """A scripted agent whose controller is gone."""
    script = folder / "script.toml"
    script.write_text(
        "[[direction]]\nid = 'd1'\nname = 'n'\n[[direction.step]]\noptions = { a = 2 }\n", "utf-8"
    )
    return scripted_agent(script, "d1")


@pytest.mark.parametrize(
    "make", [lambda _: playbook_agent(), scripted], ids=["playbook", "scripted"]
)
def test_our_agents_end_with_an_error_when_the_controller_is_gone(
    tmp_path: Path, make: Callable[[Path], SubprocessAgent]
) -> None:
    workspace = workspace_in(tmp_path)
    (workspace.worktree / "system.toml").write_text("nodes = 8\n", encoding="utf-8")
    events = events_of(make(tmp_path), workspace)
    assert [is_terminal(event) for event in events] == [False] * (len(events) - 1) + [True]
    assert code_of(events) is AgentErrorCode.PROGRAM_FAILED


@pytest.mark.skipif(
    Isolation.NAMESPACES in probe().unavailable, reason="no namespaces on this machine"
)
def test_a_confined_agent_sees_its_brief_and_nothing_of_the_run(tmp_path: Path) -> None:
    deployment = parse_deployment(
        {
            "name": "x",
            "target": {"model": "x"},
            "drafter": {"kind": "dflash2", "model": "x"},
            "engine": {"kind": "simulated"},
        },
        where="test",
    )
    for name in ("worktree", "state"):
        (tmp_path / name).mkdir()
    (tmp_path / "journal.jsonl").write_text("secret", encoding="utf-8")
    (tmp_path / "s.sock").touch()
    space = workspaces(deployment, tmp_path)(
        tmp_path / "worktree", tmp_path / "state", tmp_path / "s.sock"
    )
    source = (
        "import json, os, pathlib\n"
        "print(json.load(open(os.environ['SPECPILOT_BRIEF']))['direction_id'])\n"
        f"print(pathlib.Path({str(tmp_path / 'journal.jsonl')!r}).exists())\n"
    )
    events = events_of(program(source), space)
    assert [e.text for e in events if isinstance(e, TextEvent)] == ["d1", "False"]
    assert events[-1] == ResultEvent(summary="exited")
    assert json.loads((tmp_path / "state" / "brief.json").read_text())["name"] == "Direction"

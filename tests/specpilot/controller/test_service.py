"""The control socket: contracts, recorded answers, attempts, and what it never tells."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from simulation import (
    CODE,
    EditingAgent,
    call,
    commit_all,
    deployment_of,
    faster,
    parts_of,
    state_of,
    write_deployment,
)

from specpilot.agents.base import Workspace
from specpilot.agents.events import ResultEvent
from specpilot.controller import off_loop
from specpilot.controller.git import git
from specpilot.controller.main import run_controller
from specpilot.controller.systems import SystemRepository
from specpilot.core.system import System
from specpilot.loop.state import RunState

Conversation = Callable[[Workspace], Awaitable[None]]


class TalkingAgent(EditingAgent):
    """Edits, commits, and then says what the test wants said."""

    def __init__(self, edits, conversation: Conversation) -> None:
        super().__init__(edits, ())
        self._conversation = conversation

    async def start(self, brief, workspace, limits):
        async for _ in super().start(brief, workspace, limits):
            pass
        await self._conversation(workspace)
        yield ResultEvent(summary="done")


def talk(folder: Path, conversation: Conversation, *, edits=(), **changes: object) -> RunState:
    """One direction whose agent holds the conversation."""
    deployment = deployment_of(**changes)
    write_deployment(folder, deployment)
    chosen = list(edits) or [faster(1.1)]
    parts = parts_of(deployment, {"one": chosen})
    object.__setattr__(parts, "make_agent", lambda *_: TalkingAgent(chosen, conversation))
    run_controller(folder, parts)
    return state_of(folder)


def test_every_operation_answers_by_its_contract(tmp_path: Path) -> None:
    answers: dict[str, dict] = {}

    async def ask(workspace: Workspace) -> None:
        options = {"options": {"tree": "best_first", "nodes": 16}}
        answers["headroom"] = await call(workspace.socket, "headroom", options)
        for name in ("check", "force", "time", "submit"):
            answers[name] = await call(workspace.socket, name, {})
        answers["close"] = await call(workspace.socket, "close", {"reason": "done", "bound": 0.1})

    state = talk(tmp_path, ask)

    assert all(answer["ok"] for answer in answers.values()), answers
    assert answers["headroom"]["result"]["method"] == "microbenchmark"
    assert answers["check"]["result"]["passed"]
    assert answers["force"]["result"]["accepted"]
    assert answers["time"]["result"]["verdict"] == "promoted"
    assert answers["submit"]["result"]["run_id"] == answers["time"]["result"]["run_id"]
    assert len(state.directions["one"].attempts) == 1
    assert state.directions["one"].promoted is not None


def test_headroom_of_a_tree_alone_is_replayed(tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        options = {"options": {"tree": "best_first", "nodes": 16}}
        answers.append(await call(workspace.socket, "headroom", options))

    talk(tmp_path, ask, edits=[("system.toml", "positions = 0", "positions = 16")])

    assert answers[0]["result"]["method"] == "replay"


def test_time_alone_promotes_nothing(tmp_path: Path) -> None:
    async def ask(workspace: Workspace) -> None:
        await call(workspace.socket, "time", {})

    state = talk(tmp_path, ask)

    assert state.directions["one"].promoted is None
    assert state.best == state.stock.system


def test_attempts_are_limited_and_equal_trees_are_not_timed_again(tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        code = workspace.worktree / CODE
        for number in range(4):
            code.write_text(code.read_text() + f"# {number}\n")
            commit_all(workspace.worktree)
            answers.append(await call(workspace.socket, "time", {}))
            answers.append(await call(workspace.socket, "time", {}))

    state = talk(tmp_path, ask, edits=[(CODE, "[factors]", "# x\n[factors]")])

    timed = [answer["result"]["attempt"] for answer in answers if answer["ok"]]
    assert timed == [1, 1, 2, 2, 3, 3]
    assert answers[-1]["error"]["exit_code"] == 4
    assert len(state.directions["one"].attempts) == 3


def test_retry_needs_a_void_or_undecided_verdict(tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        await call(workspace.socket, "time", {})
        answers.append(await call(workspace.socket, "time", {"retry": 1}))

    talk(tmp_path, ask)

    assert "retry 1" in answers[0]["error"]["what"]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (b"not json\n", "request"),
        (b"[1]\n", "request"),
        (b'{"op": "sealed"}\n', "specpilot ctl"),
        (b'{"op": "time", "arguments": {"sealed": true}}\n', "specpilot ctl time"),
        (b'{"op": "close", "arguments": {"reason": "x", "bound": NaN}}\n', "specpilot ctl close"),
        (b'{"op": "headroom", "arguments": {"options": {"tre": 1}}}\n', "system.toml"),
    ],
)
def test_bad_requests_are_refused_in_one_line(line: bytes, where: str, tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        reader, writer = await asyncio.open_unix_connection(str(workspace.socket))
        writer.write(line)
        answers.append(json.loads(await reader.readline()))
        writer.close()

    talk(tmp_path, ask)

    error = answers[0]["error"]
    assert error["where"].startswith(where)
    assert error["fix"]


def test_a_client_that_leaves_gets_the_answer_when_it_asks_again(tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        _, writer = await asyncio.open_unix_connection(str(workspace.socket))
        writer.write(b'{"op": "time", "arguments": {}}\n')
        await writer.drain()
        writer.close()
        await asyncio.sleep(0.05)
        answers.append(await call(workspace.socket, "time", {}))

    state = talk(tmp_path, ask)

    assert answers[0]["result"]["attempt"] == 1
    assert len(state.directions["one"].attempts) == 1


def test_answers_tell_nothing_of_sealed_requests(tmp_path: Path) -> None:
    answers = []

    async def ask(workspace: Workspace) -> None:
        for name in ("check", "force", "time", "submit"):
            answers.append(await call(workspace.socket, name, {}))

    talk(tmp_path, ask)

    split = json.loads((tmp_path / "sealed" / "split.json").read_text())
    told = json.dumps(answers)
    assert not any(request["id"] in told for side in split.values() for request in side)


def test_a_conflicting_change_is_told_and_costs_no_attempt(tmp_path: Path) -> None:
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    edits = {"a": [faster(1.1)], "b": [faster(1.2)]}

    run_controller(tmp_path, parts_of(deployment, edits))

    state = state_of(tmp_path)
    first, second = sorted(state.directions.values(), key=lambda item: not item.attempts)
    assert first.promoted is not None
    assert not second.attempts
    assert "conflicts" in second.closed.detail


def test_a_slow_repository_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow one waits, inside git, for what the other one's request does."""
    collect = SystemRepository.collect
    reached = tmp_path / "reached"

    def slow(self: SystemRepository, direction: str, *rest: Any) -> System:
        if direction == "quick":
            reached.touch()
        else:
            waiting = f"alias.wait=!while [ ! -e {reached} ]; do sleep 0.05; done"
            git(self.folder, "-c", waiting, "wait")
        return collect(self, direction, *rest)

    monkeypatch.setattr(SystemRepository, "collect", slow)
    monkeypatch.setattr(off_loop, "SECONDS", 30.0)
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    edits = {"slow": [faster(1.1)], "quick": [("specengine/new.py", "", "x = 1\n")]}

    run_controller(tmp_path, parts_of(deployment, edits, operations=("check",)))

    for direction in state_of(tmp_path).directions.values():
        assert [answer.ok for answer in direction.answers.values()] == [True]

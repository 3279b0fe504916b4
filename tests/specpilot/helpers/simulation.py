"""A simulated run with agents of a few lines, for tests of the loop and of the controller."""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import tomli_w

from specpilot.agents.base import AgentLimits, Brief, MemoryOffer, Workspace
from specpilot.agents.events import AgentEvent, ResultEvent
from specpilot.controller.journal import Journal, read_journal
from specpilot.controller.main import run_controller
from specpilot.core.deployment import Deployment, parse_deployment
from specpilot.core.record import Record
from specpilot.engines.simulated import SimulatedAdapter
from specpilot.loop.facts import DirectionPlan, Factor, PlanningFacts
from specpilot.loop.run import Parts, Run
from specpilot.loop.simulated import simulated_ceiling, simulated_split
from specpilot.loop.state import RunState, fold

Edits = dict[str, list[tuple[str, str, str]]]
"""Direction id -> (file, old text, new text)."""


def deployment_of(**changes: object) -> Deployment:
    """A small simulated deployment."""
    table: dict[str, object] = {
        "name": "simulated",
        "target": {"model": "simulated"},
        "drafter": {"kind": "dflash2", "model": "simulated"},
        "engine": {"kind": "simulated"},
        "workload": {
            "benchmarks": ["gsm8k", "mbpp"],
            "development": 12,
            "sealed": 12,
            "max_new_tokens": 64,
            "sealed_max_new_tokens": 128,
        },
        "agent": {"kind": "playbook", "max_directions": 4},
        **changes,
    }
    return parse_deployment(table, where="test")


def write_deployment(folder: Path, deployment: Deployment) -> None:
    """Lock the deployment in a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = deployment.model_dump(mode="json", exclude_none=True)
    (folder / "deployment.toml").write_text(tomli_w.dumps(table), encoding="utf-8")


def waiting_agent(gate: Path) -> dict[str, object]:
    """A command that says a word and waits for a file: until it is there, no run can end."""
    script = f"echo waiting; until [ -e '{gate}' ]; do sleep 0.05; done"
    return {"kind": "command", "command": ["sh", "-c", script], "max_directions": 1}


class EditingAgent:
    """Makes its edits, commits, and submits: the shortest possible direction."""

    name = "editing"

    def __init__(self, edits: Sequence[tuple[str, str, str]], operations: Sequence[str]) -> None:
        self._edits = edits
        self._operations = operations

    async def start(
        self, brief: Brief, workspace: Workspace, limits: AgentLimits
    ) -> AsyncIterator[AgentEvent]:
        """See `Agent.start`."""
        for file, old, new in self._edits:
            path = workspace.worktree / file
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            assert old in text
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace(old, new), encoding="utf-8")
        commit_all(workspace.worktree)
        answers = [await call(workspace.socket, name, {}) for name in self._operations]
        yield ResultEvent(summary=json.dumps(answers)[:200])

    async def stop(self) -> None:
        """Nothing to end."""


def commit_all(worktree: Path) -> None:
    """Commit everything in a worktree, as an agent's shell would."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(worktree)}
    for arguments in (("add", "-A"), ("commit", "-q", "-m", "edit")):
        subprocess.run(["git", *arguments], cwd=worktree, env=environment, check=True)


async def call(socket: Path, operation: str, arguments: Mapping[str, object]) -> dict:
    """One request to a direction's socket."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(json.dumps({"op": operation, "arguments": arguments}).encode() + b"\n")
    line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return json.loads(line)


class NoMemory:
    """No entries, and none admitted."""

    def offers(self, options: Mapping[str, object]) -> tuple[MemoryOffer, ...]:
        """No earlier run."""
        return ()

    def admit(self, run: Run, direction: str) -> tuple[str, bool, str]:
        """Named after its direction."""
        return direction, True, "kept"


def planner_of(edits: Edits) -> Callable[..., tuple[DirectionPlan, ...]]:
    """Plans one direction per entry in round 1, nothing later."""

    def plan(
        facts: PlanningFacts, memory: Sequence[MemoryOffer], max_directions: int
    ) -> tuple[DirectionPlan, ...]:
        if facts.phase != 1 or facts.history:
            return ()
        return tuple(
            DirectionPlan(id=name, name=name, mechanism=name, factor=Factor.KERNEL, idea="edit")
            for name in edits
        )

    return plan


def parts_of(
    deployment: Deployment,
    edits: Edits,
    *,
    operations: Sequence[str] = ("submit",),
    adapter: SimulatedAdapter | None = None,
) -> Parts:
    """Parts of a simulated run whose agents make the given edits."""
    return Parts(
        adapter=adapter or SimulatedAdapter(),
        load_requests=simulated_split(deployment),
        compute_ceiling=simulated_ceiling,
        plan_directions=planner_of(edits),
        make_agent=lambda _, brief: EditingAgent(edits[brief.direction_id], operations),
        make_workspace=lambda worktree, state, socket: Workspace(worktree, state, socket),
        memory=NoMemory(),
        decode=lambda _: "",
        draw_secret=lambda: "5e" * 32,
    )


def state_of(folder: Path) -> RunState:
    """The fold of a run folder's journal."""
    return fold(read_journal(folder / "journal.jsonl").events())


CODE = "specengine/simulated.toml"


def faster(factor: float) -> tuple[str, str, str]:
    """An edit of the simulated source that makes it `factor` times as fast."""
    return (CODE, "speed = 1.0", f"speed = {factor}")


def fault(name: str) -> tuple[str, str, str]:
    """An edit of the simulated source that cheats."""
    return (CODE, 'fault = "none"', f'fault = "{name}"')


VOLATILE = frozenset(
    {"record", "device_seconds", "seconds", "pid", "starts", "agent_starts", "cuda_seconds", "usd"}
)
"""What two runs of the same thing may differ in: times, and files that hold times."""


def essence(value: object) -> object:
    """A state as plain values, without times and without how often it was resumed."""
    if isinstance(value, Record):
        return essence(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return essence({name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return {str(key): essence(item) for key, item in value.items() if str(key) not in VOLATILE}
    if isinstance(value, list | tuple):
        return [essence(item) for item in value]
    return value


def run_killed(folder: Path, parts: Parts, *, at: int, torn: bool) -> bool:
    """Run the controller in a forked process that is killed at its `at`-th journal line.

    Args:
        torn: leave half of that line on the disk, as a crash inside the write does; otherwise the
            line is whole and the process dies before anything else happens.

    Returns:
        Whether the process was killed; False means that it ended before.
    """
    child = os.fork()
    if child == 0:
        _die_at(at, torn)
        try:
            run_controller(folder, parts)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked test process must never return to pytest
            os._exit(70)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def _die_at(at: int, torn: bool) -> None:
    whole = Journal._write
    written = 0

    def write(journal: Journal, encoded: bytes) -> None:
        nonlocal written
        written += 1
        if written == at:
            if torn:
                os.write(journal._descriptor, encoded[: len(encoded) // 2])
            else:
                whole(journal, encoded)
            os.kill(os.getpid(), signal.SIGKILL)
        whole(journal, encoded)

    Journal._write = write

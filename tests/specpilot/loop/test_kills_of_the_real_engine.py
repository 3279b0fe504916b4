"""Real servers and a real agent, killed anywhere: the run ends as if nothing had been."""

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import simulation
from tiny_engine import STRONGEST as ISOLATION
from useless_drafter import write_drafter, write_target

from specpilot.controller.main import run_controller
from specpilot.core.deployment import Deployment, parse_deployment
from specpilot.core.errors import ExitCode
from specpilot.core.verdict import Reason
from specpilot.loop.parts import build_parts
from specpilot.loop.state import RunState

SCRIPT = """
[[direction]]
id = "lossy"
name = "Accept every drafted token"

[[direction.step]]
replace = [{ path = "specengine/verify/acceptance.py", old = '''
        if parents[node] == rows[-1] and drafted[node] == tokens[-1]:
''', new = '''
        if parents[node] == rows[-1]:
            tokens[-1] = drafted[node]
''' }]
operations = ["check", "force", "close"]
close_reason = "it loses tokens"
"""
MEASURED = frozenset({"ceiling", "ceiling_after", "gain", "baseline", "best", "best_before"})
"""What depends on times, beside everything that is a time."""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("real")
    write_target(folder / "target")
    write_drafter(folder / "drafter")
    words = [" ".join(f"t{3 + (7 * row + 5 * i) % 58}" for i in range(12)) for row in range(2)]
    lines = [f'{{"prompt": "{text}"}}' for text in words]
    (folder / "one.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "script.toml").write_text(SCRIPT, encoding="utf-8")
    return parse_deployment(
        {
            "name": "killed",
            "target": {"model": str(folder / "target"), "dtype": "float32"},
            "drafter": {"kind": "dflash2", "model": str(folder / "drafter")},
            "engine": {"kind": "embedded", "threads": 1},
            "platform": {"devices": ["cpu"], "isolation": ISOLATION.value},
            "workload": {
                "benchmarks": {"one": str(folder / "one.jsonl")},
                "development": 1,
                "sealed": 1,
                "max_new_tokens": 32,
                "sealed_max_new_tokens": 32,
            },
            "agent": {"kind": "scripted", "script": str(folder / "script.toml")},
        },
        where="test",
    )


class Controller:
    """A controller in a process of its own."""

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        self._folder, self._deployment = folder, deployment
        simulation.write_deployment(folder, deployment)
        self.process = self._start()

    def _start(self) -> psutil.Process:
        child = os.fork()
        if child == 0:
            try:
                parts = build_parts(self._deployment, self._folder)
                same = dataclasses.replace(parts, draw_secret=lambda: "5e" * 32)
                os._exit(int(run_controller(self._folder, same)))
            except BaseException:  # noqa: BLE001 - a forked test must never return to pytest
                os._exit(70)
        return psutil.Process(child)

    def again(self) -> None:
        """`specpilot resume`, as its process would do it."""
        self.process = self._start()

    def wait(self) -> int:
        """Its exit code."""
        return os.waitstatus_to_exitcode(os.waitpid(self.process.pid, 0)[1])

    def below(self, *words: str) -> list[psutil.Process]:
        """Processes that it started, directly or not, whose command line holds all words."""
        found = []
        for process in self.process.children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                found.append(process)
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Look often; the process must not end before."""
        while not condition():
            assert self.process.status() != psutil.STATUS_ZOMBIE, "ended before it came to that"
            time.sleep(0.02)

    def crash(self, victims: list[psutil.Process]) -> None:
        """Kill some of what it started and itself, before it can say a word about it."""
        everyone = self.process.children(recursive=True)
        self.process.send_signal(signal.SIGSTOP)
        kill(victims)
        self.process.kill()
        assert self.wait() == -signal.SIGKILL
        _, left = psutil.wait_procs(everyone, timeout=60)
        assert not [item for item in left if item.status() != psutil.STATUS_ZOMBIE]


def kill(victims: list[psutil.Process]) -> None:
    """Kill each of them; the first may take its children along."""
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()


def facts(state: RunState) -> object:
    """Everything but what was measured in seconds."""
    return _timeless(simulation.essence(state))


def _timeless(value: object) -> object:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in MEASURED}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return None if isinstance(value, float) else value


@pytest.fixture(scope="module")
def undisturbed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(deployment: Deployment, undisturbed_folder: Path) -> tuple[RunState, float]:
    """The state at the end, and how many seconds it took."""
    started = time.monotonic()
    assert Controller(undisturbed_folder, deployment).wait() == ExitCode.NOTHING_PROMOTED
    return simulation.state_of(undisturbed_folder), time.monotonic() - started


def test_the_undisturbed_run_says_what_the_edit_is(undisturbed: tuple[RunState, float]) -> None:
    direction = undisturbed[0].directions["lossy"]
    answers = {answer.operation: answer.answer for answer in direction.answers.values()}

    assert answers["force"]["result"]["accepted"] is False
    assert direction.closed.reason is Reason.CLOSED_ON_BOUND


def test_crashes_anywhere_change_nothing_but_times(
    deployment: Deployment,
    undisturbed: tuple[RunState, float],
    tmp_path: Path,
) -> None:
    """Once alone, once with a server, once with the agent beside it."""
    chance = random.Random(1)
    expected, seconds = undisturbed
    controller = Controller(tmp_path, deployment)
    time.sleep(chance.uniform(0.1, 0.5) * seconds)
    controller.crash([])
    controller.again()
    controller.until(lambda: controller.below("specengine.server"))
    time.sleep(chance.uniform(0, 0.1) * seconds)
    controller.crash(controller.below("specengine.server")[:1])
    controller.again()
    controller.until(lambda: controller.below("specpilot.agents"))
    time.sleep(chance.uniform(0, 0.05) * seconds)
    controller.crash(controller.below("specpilot.agents"))
    controller.again()

    assert controller.wait() == ExitCode.NOTHING_PROMOTED
    assert facts(simulation.state_of(tmp_path)) == facts(expected)


def test_an_agent_killed_alone_ends_its_direction_and_nothing_else(
    deployment: Deployment,
    undisturbed: tuple[RunState, float],
    undisturbed_folder: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed_folder, folder, symlinks=True)
    _cut_after(folder / "journal.jsonl", "directions_planned")
    controller = Controller(folder, deployment)
    controller.until(lambda: controller.below("specpilot.agents.scripted"))
    kill(controller.below("specpilot.agents.scripted"))

    assert controller.wait() == ExitCode.NOTHING_PROMOTED
    state = simulation.state_of(folder)
    assert state.finished is not None
    assert state.directions["lossy"].closed.reason is Reason.AGENT_ENDED


def _cut_after(journal: Path, kind: str) -> None:
    """Leave what a controller had written that died right after its first event of a kind."""
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if f'"kind":"{kind}"' in line)
    journal.write_text("".join(lines[: last + 1]), encoding="utf-8")

"""A frozen tree computes nothing, says so when it did, and ends like any other."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Isolation
from specpilot.sandbox import freezing
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.freezing import below, freeze, thaw
from specpilot.sandbox.policy import Bind, Policy, Role, interpreter_binds
from specpilot.sandbox.probe import probe
from specpilot.sandbox.process import ConfinedProcess, start

STRONGEST = Isolation.NONE if Isolation.NAMESPACES in probe().unavailable else Isolation.NAMESPACES
LEVELS = sorted({Isolation.NONE, STRONGEST})
COUNTS = """
import os, pathlib, time
for name in ("parent", "child", "orphan"):
    if name == "parent" or os.fork() == 0:
        if name == "orphan" and os.fork():
            os._exit(0)
        if name != "parent":
            os.setsid()
            path = pathlib.Path(name)
            while True:
                path.write_text(str(time.monotonic()))
                time.sleep(0.002)
while True:
    time.sleep(0.002)
    pathlib.Path("parent").write_text(str(time.monotonic()))
"""
"""A command, a child in a session of its own, and an orphan, each writing the time to a file."""
WAKES = """
import ctypes, pathlib, signal
libc = ctypes.CDLL(None)
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                ("pad", ctypes.c_char * 48)]
# With a handler: a kernel need not start a timer again whose signal was ignored.
signal.signal(signal.SIGCONT, lambda *_: None)
timer = ctypes.c_void_p()
libc.timer_create(1, ctypes.byref(Event(0, signal.SIGCONT, 0)), ctypes.byref(timer))
times = (ctypes.c_long * 4)(0, 20_000_000, 0, 20_000_000)
libc.timer_settime(timer, 0, times, None)
for name in ("parent", "child", "orphan"):
    pathlib.Path(name).write_text("0")
while True:
    pass
"""
"""Has itself woken every 20 ms, and computes."""


def play(
    folder: Path, isolation: Isolation, program: str, action: Callable[..., Awaitable[None]]
) -> None:
    async def run() -> None:
        inside = folder if isolation is Isolation.NONE else Path("/run/work")
        policy = Policy(
            role=Role.SERVER,
            read_only=interpreter_binds(),
            writable=(Bind(folder, inside),),
            environment=base_environment(Path("/tmp/home"), Path("/tmp")),
            working_folder=inside,
        )
        process = await start(
            policy,
            (sys.executable, "-I", "-S", "-c", program),
            isolation,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            while not all((folder / name).exists() for name in ("parent", "child", "orphan")):
                await asyncio.sleep(0.01)
            await action(process)
        finally:
            await process.stop(grace_seconds=0.5)
        assert below(process.pid) == []

    asyncio.run(asyncio.wait_for(run(), 120))


def contents(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("parent", "child", "orphan")]


@pytest.mark.parametrize("isolation", LEVELS)
def test_nothing_runs_between_freezing_and_thawing(tmp_path: Path, isolation: Isolation) -> None:
    async def action(process: ConfinedProcess) -> None:
        for _ in range(3):
            await process.freeze()
            await process.freeze()
            before = contents(tmp_path)
            await asyncio.sleep(0.1)
            assert contents(tmp_path) == before
            await process.thaw()
            await process.thaw()
            while any(a == b for a, b in zip(contents(tmp_path), before, strict=True)):
                await asyncio.sleep(0.01)

    play(tmp_path, isolation, COUNTS, action)


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_frozen_tree_is_ended_in_time(tmp_path: Path, isolation: Isolation) -> None:
    async def action(process: ConfinedProcess) -> None:
        await process.freeze()

    started = time.monotonic()
    play(tmp_path, isolation, COUNTS, action)
    assert time.monotonic() - started < 60


def test_who_has_itself_woken_is_found_out(tmp_path: Path) -> None:
    async def action(process: ConfinedProcess) -> None:
        # What freezing did is undone from inside; only the account of processor time shows it.
        rest = await freeze(process.pid)
        deadline = time.monotonic() + 60
        while all(
            found.ticks <= rest[found.pid, found.started] + 2 for found in below(process.pid)
        ):
            assert time.monotonic() < deadline, "the program was not woken"
            await asyncio.sleep(0.05)
        with pytest.raises(EngineFailure, match=r"used \d+\.\d+ s of processor time while it was"):
            thaw(process.pid, rest)

    play(tmp_path, STRONGEST, WAKES, action)


def test_a_process_that_came_while_frozen_is_found_out(tmp_path: Path) -> None:
    async def action(process: ConfinedProcess) -> None:
        rest = dict(await freeze(process.pid))
        del rest[max(rest)]
        with pytest.raises(EngineFailure, match="started process"):
            thaw(process.pid, rest)

    play(tmp_path, Isolation.NONE, COUNTS, action)


def test_what_is_gone_cannot_be_frozen_or_thawed(tmp_path: Path) -> None:
    async def action(process: ConfinedProcess) -> None:
        await process.freeze()
        for found in process.descendants():
            # The first process of a namespace takes the others with it.
            with suppress(ProcessLookupError):
                os.kill(found.pid, signal.SIGKILL)
        await process.wait()
        with pytest.raises(EngineFailure, match="cannot be thawed: its process is gone"):
            await process.thaw()
        with pytest.raises(EngineFailure, match="cannot be frozen: its process is gone"):
            await process.freeze()

    play(tmp_path, Isolation.NONE, COUNTS, action)


JUDGE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_freezing as tests
from specpilot.core.measurement import Isolation
async def action(process):
    await process.freeze()
    Path(sys.argv[1], "frozen").write_text(str(process.pid))
    await asyncio.sleep(600)
tests.play(Path(sys.argv[1]), Isolation(sys.argv[2]), tests.COUNTS, action)
"""


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_frozen_tree_does_not_survive_a_killed_judge(
    tmp_path: Path, isolation: Isolation
) -> None:
    here = str(Path(__file__).parent)
    judge = subprocess.Popen(
        [sys.executable, "-c", JUDGE, str(tmp_path), isolation.value, here],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "frozen").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    tree = psutil.Process(judge.pid).children(recursive=True)
    assert len(tree) >= 4
    judge.kill()
    judge.wait()
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in tree):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _seen(pid: int, ticks: int, state: str = "T") -> freezing.Seen:
    return freezing.Seen(pid=pid, parent=1, state=state, started=pid, ticks=ticks)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([_seen(10, 50), _seen(11, 7)], None),
        ([_seen(10, 51), _seen(11, 8)], None),
        ([_seen(10, 50)], "ended process 11"),
        ([_seen(10, 52), _seen(11, 9)], "used 0.04 s"),
        ([_seen(10, 50), _seen(11, 7), _seen(12, 0)], "started process 12"),
    ],
)
def test_a_whole_tree_must_have_stayed_at_rest(
    after: list[freezing.Seen], why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "resume", lambda root: after)
    monkeypatch.setattr(freezing, "_TICKS_PER_SECOND", 100)
    rest = {(10, 10): 50, (11, 11): 7, (13, 13): freezing._DEAD}
    if why is None:
        freezing.thaw(1, rest)
        return
    with pytest.raises(EngineFailure, match=why):
        freezing.thaw(1, rest)

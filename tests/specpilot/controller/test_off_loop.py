"""Blocking work does not hold up the loop, ends with its caller, and never lasts for ever."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from specpilot.controller import off_loop as module
from specpilot.controller.git import GitError, git
from specpilot.controller.off_loop import Halted, go_on, off_loop

SLOW = "!f() { touch started; sleep 300; }; f"


def slow_git(folder: Path) -> None:
    git(folder, "-c", f"alias.slow={SLOW}", "slow")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", ".")
    return tmp_path


async def until(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


def test_the_loop_goes_on_and_a_cancelled_caller_ends_the_command(repository: Path) -> None:
    async def play() -> float:
        working = [asyncio.create_task(off_loop(slow_git, repository)) for _ in range(12)]
        await until(repository / "started")
        assert await asyncio.wait_for(off_loop(lambda: "answered"), 30) == "answered"
        started = time.monotonic()
        for task in working:
            task.cancel()
        found = await asyncio.gather(*working, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in found)
        return time.monotonic() - started

    assert asyncio.run(play()) < 60
    assert not [process for process in psutil.process_iter() if _works_in(process, repository)]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()) == folder
    except (psutil.Error, FileNotFoundError):
        return False


def test_work_is_bounded(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.2)

    def walk() -> None:
        while True:
            go_on()

    with pytest.raises(Halted, match="takes too long"):
        asyncio.run(off_loop(walk))
    with pytest.raises(GitError, match="did not end"):
        asyncio.run(off_loop(slow_git, repository))


def test_failures_and_results_come_through() -> None:
    def fail() -> None:
        raise KeyError("x")

    assert asyncio.run(off_loop(sum, (1, 2))) == 3
    with pytest.raises(KeyError):
        asyncio.run(off_loop(fail))
    go_on()

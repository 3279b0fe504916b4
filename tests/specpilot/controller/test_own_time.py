"""A paused process is not late: limits count what it lived through."""

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from specpilot.controller import own_time
from specpilot.controller.git import git
from specpilot.controller.off_loop import off_loop
from specpilot.controller.own_time import OwnTime


def clock(monkeypatch: pytest.MonkeyPatch, times: Iterator[float]) -> None:
    monkeypatch.setattr(own_time, "monotonic", lambda: next(times))


def test_a_pause_counts_as_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, iter([0.0, 0.5, 300.0, 300.25, 301.0]))
    time = OwnTime(2.5)

    assert [time.left for _ in range(4)] == [2.0, 1.0, 0.75, 0.0]


def test_a_pause_ends_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock comes after a pause of five minutes."""
    clock(monkeypatch, count(0.0, 300.0))
    git(tmp_path, "init", "--quiet", ".")

    def work() -> None:
        git(tmp_path, "-c", "alias.nap=!sleep 0.2", "nap")

    asyncio.run(off_loop(work))

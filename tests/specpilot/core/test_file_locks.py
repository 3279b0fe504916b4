"""Locks that are held for a moment are waited for; those that stay are not."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot.core.file_locks import PATIENCE_SECONDS, lock_alone


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two descriptors of one file, the first of which holds the lock."""
    held, free = (os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(held, fcntl.LOCK_EX)
    yield held, free
    os.close(held)
    os.close(free)


def test_a_lock_that_is_let_go_is_taken(two: tuple[int, int]) -> None:
    held, free = two
    threading.Timer(0.1, fcntl.flock, (held, fcntl.LOCK_UN)).start()

    lock_alone(free)

    with pytest.raises(BlockingIOError):
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_a_lock_that_stays_is_refused(two: tuple[int, int]) -> None:
    begun = time.monotonic()

    with pytest.raises(BlockingIOError):
        lock_alone(two[1])

    assert time.monotonic() - begun >= PATIENCE_SECONDS

"""Exclusive locks on files and folders, which go with whoever held them."""

import fcntl
import time

PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.01


def lock_alone(descriptor: int) -> None:
    """Take the lock, or wait a moment for it.

    Some hold a lock for milliseconds only: a process that was killed while it started a program,
    until that program begins, and a command that only looks whether the lock is held.

    Raises:
        BlockingIOError: it is held for longer.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)

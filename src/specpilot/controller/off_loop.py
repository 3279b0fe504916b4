"""Blocking work beside the event loop: bounded in time, and ended when its caller is.

The loop holds the clock of every measurement and the sockets of every agent, so nothing that an
agent's files can slow down may run on it. A thread cannot be ended from outside; what it waits for
can: commands register how to end them, and long walks ask whether to go on.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import ParamSpec, TypeVar

from specpilot.controller.own_time import SLICE, OwnTime
from specpilot.core.errors import Refused

SECONDS = 120.0
"""Far more than any work on a source tree takes."""
Asked = ParamSpec("Asked")
Found = TypeVar("Found")


class Halted(Refused):
    """Work was ended before its end."""


class Halt:
    """The deadline of one piece of work, and a way to end it earlier."""

    def __init__(self, seconds: float) -> None:
        self._time = OwnTime(seconds)
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._stopped = False

    @property
    def remaining(self) -> float:
        """Seconds of this process's own time that are left; 0 when there are none."""
        return 0.0 if self._stopped else self._time.left

    def stop(self) -> None:
        """End what is registered, and everything that registers later."""
        with self._lock:
            self._stopped = True
            for end in self._ends:
                end()

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` when this is stopped inside the block."""
        with self._lock:
            self._ends.append(end)
            if self._stopped:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


_current: ContextVar[Halt | None] = ContextVar("current halt", default=None)


def current_halt() -> Halt:
    """Of the work that this thread does; one that nobody stops on the loop itself."""
    return _current.get() or Halt(SECONDS)


def go_on() -> None:
    """Called now and then by long work.

    Raises:
        Halted: its time is up, or nobody waits for it any more.
    """
    halt = _current.get()
    if halt is not None and not halt.remaining:
        raise Halted(
            "takes too long",
            where="reading a worktree",
            fix="commit source files only, and leave the worktree's .git folder alone",
        )


async def off_loop(
    work: Callable[Asked, Found], *arguments: Asked.args, **named: Asked.kwargs
) -> Found:
    """What `work` gives, in a thread of its own.

    When the caller is cancelled, the work is ended first.

    Raises:
        Halted: it took longer than `SECONDS`.
    """
    halt = Halt(SECONDS)
    context = copy_context()
    context.run(_current.set, halt)
    # A pool of its own: slow work must not keep others from a thread.
    pool = ThreadPoolExecutor(1)
    done = asyncio.wrap_future(pool.submit(lambda: context.run(work, *arguments, **named)))
    try:
        while not done.done():
            await asyncio.wait([done], timeout=SLICE)
            # Counts the slice, also where the work itself asks seldom.
            _ = halt.remaining
        return done.result()
    except asyncio.CancelledError:
        halt.stop()
        await asyncio.wait([done])
        if not done.cancelled():
            done.exception()
        raise
    finally:
        pool.shutdown(wait=False)

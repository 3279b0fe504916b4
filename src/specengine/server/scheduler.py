"""The worker: one thread that owns the engine and advances running work in turn.

Work waits in a bounded queue, then holds one of `slots` slots until it ends. Torch runs on this
thread alone, never on the event loop. A cancelled request frees its slot before its next step.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from specengine.server.failures import ApiError, not_running, queue_full, shutting_down

_log = logging.getLogger("specengine.server")


class Work(Protocol):
    """Something that holds a slot; all methods run on the worker thread, except `cancel`."""

    def advance(self) -> bool:
        """Do one step; True while more are to come. Failures of the request end here."""
        ...

    def deliver(self) -> None:
        """Send the last answer. Its slot is free by then, so that a client that has its answer
        never finds the server still busy with it."""
        ...

    def fail(self, error: ApiError) -> None:
        """Answer with an error and release everything held; may run on any thread."""
        ...

    def cancel(self) -> None:
        """Ask it to end: the client is gone. Any thread."""
        ...


class Scheduler:
    """Queue, slots and worker thread.

    Args:
        slots: work that runs side by side, one step each in turn.
        max_queue: work that may wait beyond that.
        on_start: called first on the worker thread.
    """

    def __init__(
        self, *, slots: int, max_queue: int, on_start: Callable[[], None] = lambda: None
    ) -> None:
        self.slots = slots
        self.max_queue = max_queue
        self._on_start = on_start
        self.rejected = 0
        """Work refused because the queue was full."""
        self.failed_at_close = 0
        """Running work that `close` cut short."""
        self.on_crash: Callable[[], None] = lambda: None
        """Called from the worker thread when a defect ended it; the server must end."""
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: list[Work] = []
        self._draining = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def running(self) -> int:
        """Work that holds a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Work in the queue."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the worker thread."""
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue work.

        Raises:
            ApiError: the queue is full (429), or the server is shutting down (503).
        """
        with self._changed:
            if self._draining:
                raise shutting_down()
            if len(self._waiting) + len(self._running) >= self.slots + self.max_queue:
                self.rejected += 1
                raise queue_full(self.max_queue)
            self._waiting.append(work)
            self._changed.notify()

    def cancel(self, work: Work) -> None:
        """End work whose client is gone; its place in the queue is free at once."""
        work.cancel()
        with self._changed:
            if work in self._waiting:
                self._waiting.remove(work)

    def run_when_idle(self, action: Callable[[], None]) -> int:
        """Run `action` if nothing runs or waits, and nothing can start meanwhile.

        Returns:
            How much work was in the way; 0 when the action ran.
        """
        with self._changed:
            busy = len(self._waiting) + len(self._running)
            if busy == 0:
                action()
            return busy

    def drain(self) -> None:
        """Take no more work and refuse what waits; running work goes on."""
        with self._changed:
            self._draining = True
            waiting, self._waiting = list(self._waiting), deque()
        for work in waiting:
            work.fail(shutting_down())

    def close(self, timeout_seconds: float) -> bool:
        """End the worker after its current step; running work fails. Harmless when repeated.

        Returns:
            Whether the thread ended in time.
        """
        with self._changed:
            if not self._closed:
                self.failed_at_close = len(self._running)
            self._draining = self._closed = True
            for work in self._running:
                work.cancel()
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        crashed = True
        try:
            self._on_start()
            while self._admit():
                for work in list(self._running):
                    if not work.advance():
                        with self._changed:
                            self._running.remove(work)
                        work.deliver()
            crashed = False
        finally:
            # A defect that reaches this point leaves the engine in an unknown state. Its traceback
            # goes to stderr through the thread's hook; the clients get an answer, the server ends.
            self._fail_all()
            if crashed:
                _log.error("the engine thread ended by a defect; the server ends")
                self.on_crash()

    def _admit(self) -> bool:
        """Fill free slots, waiting for work if there is none; False when the worker must end."""
        with self._changed:
            while not (self._waiting or self._running or self._closed):
                self._changed.wait()
            while self._waiting and len(self._running) < self.slots:
                self._running.append(self._waiting.popleft())
            return not self._closed

    def _fail_all(self) -> None:
        with self._changed:
            self._draining = True
            left = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
        for work in left:
            work.fail(not_running())

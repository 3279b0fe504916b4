"""The two kinds of work: a request that emits tokens step by step, and one call of the engine."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specengine.decoding.session import Session
from specengine.errors import EngineError
from specengine.server.failures import ApiError, as_api_error

# RuntimeError is what torch raises for whatever one request can provoke, such as lack of memory.
_REQUEST_FAILURES = (EngineError, RuntimeError)


@dataclass(frozen=True, slots=True)
class Emission:
    """What one step of a request gave."""

    tokens: list[int]
    finish_reason: str | None
    """Set with the last tokens."""
    error: ApiError | None = None
    """Set when the request failed; nothing follows."""
    steps: int = 0
    """Verify passes of the whole request; set with the last tokens."""


class Generation:
    """One request on the worker thread; its emissions reach the event loop through a queue.

    Args:
        start: begins the session.
        stream: deliver each step's tokens; otherwise all at the end, which costs the loop less.
    """

    def __init__(self, start: Callable[[], Session], *, stream: bool) -> None:
        self._start = start
        self._stream = stream
        self._session: Session | None = None
        self._held: list[int] = []
        self._last: Emission | None = None
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self.emissions: asyncio.Queue[Emission] = asyncio.Queue()

    def advance(self) -> bool:
        """One step."""
        if self._cancelled:
            self._close()
            return False
        try:
            if self._session is None:
                self._session = self._start()
            tokens = self._session.step()
        except _REQUEST_FAILURES as error:
            self._close()
            self._last = Emission([], None, as_api_error(error))
            return False
        self._held += tokens
        reason = self._session.finish_reason
        if reason is not None:
            self._last = Emission(self._held, reason, steps=self._session.steps)
        elif self._stream:
            held, self._held = self._held, []
            self._send(Emission(held, None))
        return reason is None

    def deliver(self) -> None:
        """Send the last emission, if anyone still wants it."""
        if self._last is not None:
            self._send(self._last)

    def fail(self, error: ApiError) -> None:
        """Answer with an error."""
        self._close()
        self._send(Emission([], None, error))

    def cancel(self) -> None:
        """Release the slot before the next step."""
        self._cancelled = True

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _send(self, emission: Emission) -> None:
        _post(self._loop, self.emissions.put_nowait, emission)


class Call:
    """One call of the engine, such as a score, run whole on the worker thread.

    Args:
        action: gets a function that says whether anyone still wants the answer.
    """

    def __init__(self, action: Callable[[Callable[[], bool]], Any]) -> None:
        self._action = action
        self._result: Any = None
        self._error: ApiError | None = None
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self._loop.create_future()

    def advance(self) -> bool:
        """The whole call."""
        if self._cancelled:
            return False
        try:
            self._result = self._action(lambda: not self._cancelled)
        except _REQUEST_FAILURES as error:
            self._error = as_api_error(error)
        return False

    def deliver(self) -> None:
        """Send the result or the failure."""
        _post(self._loop, self._settle, self._result, self._error)

    def fail(self, error: ApiError) -> None:
        """Answer with an error."""
        _post(self._loop, self._settle, None, error)

    def cancel(self) -> None:
        """Drop the call if it has not begun, else tell it."""
        self._cancelled = True

    def _settle(self, result: Any, error: ApiError | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: Any) -> None:
    # A server that ends at once closes its loop under running work: nobody is left to tell.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)

"""One client's connection, which stays open while the client only stopped sending.

A client that has sent its request may close its sending side and wait for the answer (`nc` does).
Its end of file looks like that of a client that is gone. What tells them apart is the other end's
reaction: a Unix socket hangs up as soon as it is closed; a TCP socket does once it gets a byte that
nobody will read. Such a byte must mean nothing to a client that still listens: an interim response,
which HTTP/1.1 allows any number of times before the answer.
"""

import select
import socket
from asyncio import TimerHandle
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LOOK_SECONDS = 0.1
"""How often a half-closed connection is looked at."""
LOOKS_PER_PROBE = 10
"""How many of these looks come with an interim response: one in so many."""
IDLE_SECONDS = 1
"""Where no interim response is allowed, the kernel's own probes must find out; Linux lets a closed
socket answer them for a minute."""
UNANSWERED = 3
"""Kernel's probes without an answer after which the other machine is gone."""


class Connection(H11Protocol):
    """uvicorn's connection, but an end of file between request and answer is no farewell."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._watch: TimerHandle | None = None
        self._looks = 0

    def eof_received(self) -> bool:
        """True, which keeps the connection open, while an answer is due and may be read."""
        if not self._answer_is_due() or self._hung_up():
            return False
        if self._watch is None:
            bound = self.transport.get_extra_info("socket")
            if bound.family != socket.AF_UNIX:
                _keep_alive(bound)
            self._look()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or has its answer."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Close after the last answer, since no more requests can come."""
        super().on_response_complete()
        if self._watch is not None and not self._answer_is_due():
            self.transport.close()

    def _answer_is_due(self) -> bool:
        # A request that ends in the middle of its body gets no answer.
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _hung_up(self) -> bool:
        poll = select.poll()
        # Hang-ups and errors are reported unasked; the end of file would be reported for ever.
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        return bool(poll.poll(0))

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        if self._hung_up():
            self.transport.abort()
            return
        if self._looks % LOOKS_PER_PROBE == 0 and self._may_probe():
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))
        self._looks += 1
        self._watch = self.loop.call_later(LOOK_SECONDS, self._look)

    def _may_probe(self) -> bool:
        # A stream's own events are probes enough.
        unix = self.transport.get_extra_info("socket").family == socket.AF_UNIX
        started = self.cycle.response_started
        return not (unix or started or self.scope["http_version"] == "1.0")


def _keep_alive(bound: socket.socket) -> None:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, IDLE_SECONDS),
        (socket.TCP_KEEPCNT, UNANSWERED),
    ):
        bound.setsockopt(socket.IPPROTO_TCP, option, value)

"""HTTP over a Unix socket with the judge's own clock."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from specpilot.core.errors import EngineFailure
from specpilot.sandbox.foreign import one_line, spoken

MAX_ANSWER_BYTES = 1 << 30
MAX_PARTS = 1 << 20
"""Arrivals of one answer: a byte at a time would take fifty times its size in memory."""
JSON_ERRORS = (ValueError, RecursionError)
"""What parsing foreign JSON may raise: besides malformed text, nesting without end."""


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer with the client's clock.

    Attributes:
        status: HTTP status.
        chunks: (seconds since the request was sent, bytes), in the order of arrival.
        seconds: from the request being sent to the last byte.
    """

    status: int
    chunks: tuple[tuple[float, bytes], ...]
    seconds: float

    @property
    def body(self) -> bytes:
        """All bytes."""
        return b"".join(part for _, part in self.chunks)


class Transport:
    """Exchanges with the server behind one socket."""

    def __init__(self, socket: Path, *, timeout_seconds: float) -> None:
        self._socket = socket
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._folder = -1
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready; the socket's folder must exist, the socket itself need not."""
        # A path through an open folder is short however deep the folder lies: socket addresses
        # hold 107 bytes.
        self._folder = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        connector = aiohttp.UnixConnector(
            f"/proc/self/fd/{self._folder}/{self._socket.name}", limit=0
        )
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)

    async def close(self) -> None:
        """Close connections; calling it again is harmless."""
        if self._session is not None:
            await self._session.close()
            self._session = None
            os.close(self._folder)

    async def exchange(self, method: str, path: str, body: dict[str, Any] | None) -> TimedAnswer:
        """Send one request and read its whole answer.

        Raises:
            EngineFailure: no complete answer.
        """
        if self._session is None:
            raise EngineFailure("the client is closed", where=path, fix="start the server again")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"}
        chunks: list[tuple[float, bytes]] = []
        size = 0
        started = time.perf_counter()
        try:
            async with self._session.request(
                method, f"http://engine{path}", data=data, headers=headers, allow_redirects=False
            ) as response:
                async for part in response.content.iter_any():
                    chunks.append((time.perf_counter() - started, part))
                    size += len(part)
                    if size > MAX_ANSWER_BYTES or len(chunks) > MAX_PARTS:
                        raise malformed(path, f"{size} bytes in {len(chunks)} parts")
                seconds = time.perf_counter() - started
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            detail = one_line(str(error)) or type(error).__name__
            raise EngineFailure(
                f"no complete answer ({detail})", where=path, fix="see the server's log"
            ) from error
        return TimedAnswer(response.status, tuple(chunks), seconds)


def json_object(body: bytes, path: str) -> dict[str, Any]:
    """The JSON object in an answer.

    Raises:
        EngineFailure: something else, or a number that is not finite.
    """
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except JSON_ERRORS as error:
        raise malformed(path, f"not JSON of finite numbers ({error})") from error
    if not isinstance(value, dict):
        raise malformed(path, "not a JSON object")
    return value


def error_message(body: bytes) -> str:
    """The message of an error answer, or the start of its bytes."""
    try:
        message = json.loads(body)["error"]["message"]
    except (*JSON_ERRORS, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return one_line(message) if isinstance(message, str) else spoken(message)


def malformed(path: str, what: str) -> EngineFailure:
    """The failure of a server that answered, but not what the contract says."""
    return EngineFailure(
        f"malformed answer: {one_line(what)}", where=path, fix="the run is void; mend the engine"
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"non-finite number {name}")

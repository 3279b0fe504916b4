"""One Unix socket per direction: the socket is the identity, a line is a request.

A connection carries one JSON line and gets one back. A client that goes away does not stop what it
asked for: the answer is recorded and waits for whoever asks again.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from specpilot.agents.ctl import MAX_LINE_BYTES
from specpilot.controller.operations.answering import answer, refusal
from specpilot.core.errors import Refused
from specpilot.core.record import canonical_json
from specpilot.loop.run import Run

_LONGEST_SOCKET_PATH = 100
"""The kernel's limit for Unix socket paths is 107 bytes."""


@asynccontextmanager
async def direction_socket(run: Run, direction: str) -> AsyncIterator[Path]:
    """Serve one direction until the block is left."""
    path, folder = _socket_path(run.folder / "control" / f"{direction}.sock")
    path.unlink(missing_ok=True)
    desk = _Desk(run, direction)
    server = await asyncio.start_unix_server(desk.serve, str(path), limit=MAX_LINE_BYTES)
    path.chmod(0o600)
    try:
        yield path
    finally:
        server.close()
        await desk.close()
        path.unlink(missing_ok=True)
        if folder is not None:
            folder.rmdir()


class _Desk:
    """Answers one direction's requests, one at a time."""

    def __init__(self, run: Run, direction: str) -> None:
        self._run = run
        self._direction = direction
        self._one_at_a_time = asyncio.Lock()
        self._working: set[asyncio.Task[dict[str, Any]]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            line = await reader.readline()
            message = _parse(line)
            if message is None:
                result = refusal(
                    Refused(
                        "is not one JSON object in one line",
                        where=f"request to {self._direction}",
                        fix="use 'specpilot ctl'",
                    )
                )
            else:
                task = asyncio.create_task(self._answer(message))
                self._working.add(task)
                task.add_done_callback(self._finished)
                await asyncio.wait([task])
                if task.cancelled() or task.exception() is not None:
                    # The run ends with it; there is no answer to give.
                    return
                result = task.result()
            writer.write(canonical_json(result).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            # The client is gone or its line has no end; what it asked for goes on.
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        """End work whose answer nobody can get any more."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        async with self._one_at_a_time:
            return await answer(self._run, self._direction, message)

    def _finished(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._run.fail(error)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _socket_path(wanted: Path) -> tuple[Path, Path | None]:
    """The path, or a private folder's where the run folder is too deep for a socket."""
    if len(os.fsencode(wanted.absolute())) <= _LONGEST_SOCKET_PATH:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        return wanted.absolute(), None
    folder = Path(tempfile.mkdtemp(prefix="specpilot-"))
    return folder / "control.sock", folder

"""An agent's process: confined, without stdin, read line by line, ended with all it started.

The guard of `specpilot.sandbox` sees to it that no descendant survives the agent's end, the order
to end, or the death of the process that launched it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from specpilot.sandbox.process import NO_LIMIT, ConfinedProcess, guard_line

MAX_LINE_BYTES = 16 << 20


class LineTooLong(Exception):
    """The program wrote a line that no event stream has."""


class LineProcess:
    """A running command whose standard output is read line by line."""

    def __init__(self, process: ConfinedProcess) -> None:
        self._process = process
        self._buffer = bytearray()

    @classmethod
    async def launch(
        cls,
        command: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
    ) -> "LineProcess":
        """Start the command, its confining prefix included.

        Args:
            folder: working directory.
            environment: the whole environment.
            log: where its standard error is appended.
        """
        if log.is_symlink():
            # An earlier start of an agent that was not confined may have left it.
            log.unlink()
        with log.open("ab") as stream:
            process = await asyncio.create_subprocess_exec(
                *guard_line(NO_LIMIT),
                *command,
                cwd=folder,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        return cls(ConfinedProcess(process))

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the id of the process group."""
        return self._process.pid

    async def read_line(self, seconds: float) -> str | None:
        """The next line without its end; None at the end of the output.

        Raises:
            TimeoutError: no complete line arrived in time.
            LineTooLong: a line exceeds 16 MiB.
        """
        async with asyncio.timeout(max(0.0, seconds)):
            while b"\n" not in self._buffer:
                part = await self._read()
                if not part:
                    return self._take(len(self._buffer)) if self._buffer else None
                self._buffer += part
                if len(self._buffer) > MAX_LINE_BYTES and b"\n" not in part:
                    raise LineTooLong
        return self._take(self._buffer.index(b"\n") + 1)

    async def exit_status(self, seconds: float) -> int | None:
        """The command's exit status; None when it still runs after `seconds`."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                # A program that still writes would block on a full pipe and never exit.
                while await self._read():
                    continue
                return await self._process.wait()
        except TimeoutError:
            return None

    async def end(self, grace_seconds: float) -> None:
        """Ask to exit, then kill; returns when nothing is left."""
        await self._process.stop(grace_seconds)
        # Nobody writes any more; asyncio lets go of the process once it has seen the pipe end.
        while await self._read():
            continue
        await asyncio.sleep(0)

    async def _read(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.read(1 << 16)

    def _take(self, count: int) -> str:
        line = bytes(self._buffer[:count])
        del self._buffer[:count]
        return line.decode(errors="replace").rstrip("\r\n")

"""Starts confined processes, and ends them with everything that they started.

Every process runs below a guard (`guard.py`), so that none outlives the process that asked for it.
At level `none` the command runs plainly below the guard; at `namespaces` bubblewrap confines it; at
`strict` it also changes to the account of the role, once the view of the files is built.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

from specpilot.core.errors import SpecPilotError
from specpilot.core.measurement import Isolation
from specpilot.sandbox import freezing, guard
from specpilot.sandbox.accounts import account_of, hand_over
from specpilot.sandbox.foreign import one_line
from specpilot.sandbox.policy import Policy, Role, bwrap_arguments, check_policy

NO_LIMIT = -1
_LARGEST_FILES = {Role.SERVER: 1 << 30, Role.AGENT: NO_LIMIT}
"""Bytes of one file. An engine writes none of this size; an agent may compile what it wants."""
_LOG_TAIL_BYTES = 1 << 16


def command_line(policy: Policy, command: Sequence[str], isolation: Isolation) -> tuple[str, ...]:
    """The whole command line: guard, then bubblewrap where the level has it, then the command."""
    guarded = guard_line(_LARGEST_FILES[policy.role])
    if isolation is Isolation.NONE:
        return (*guarded, *command)
    account = account_of(policy.role) if isolation is Isolation.STRICT else None
    identity = None if account is None else (account.uid, account.gid)
    return (*guarded, *bwrap_arguments(policy, command, identity=identity))


def guard_line(largest_file: int) -> tuple[str, ...]:
    """The guard's part of a command line, for a process that this one starts.

    Args:
        largest_file: bytes that a file may have, or `NO_LIMIT`.
    """
    return (sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(largest_file))


async def start(
    policy: Policy,
    command: Sequence[str],
    isolation: Isolation,
    *,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
) -> "ConfinedProcess":
    """Start a command under a policy, in a session of its own, with no standard input.

    The calling thread must live as long as the process: the kernel reports the end of the thread
    that forked as the parent's death.

    Raises:
        Refused: the policy exposes a hidden path.
        SpecPilotError: a path of the policy is missing.
    """
    check_policy(policy)
    if isolation is Isolation.STRICT:
        hand_over(policy, account_of(policy.role))
    plain = isolation is Isolation.NONE
    process = await asyncio.create_subprocess_exec(
        *command_line(policy, command, isolation),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        cwd=policy.working_folder if plain else "/",
        env=dict(policy.environment or {}) if plain else {},
    )
    return ConfinedProcess(process)


class ConfinedProcess:
    """A guard and everything below it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._guard = psutil.Process(process.pid)
        self._rest: freezing.Rest | None = None

    @property
    def pid(self) -> int:
        """Process id of the guard, which is also the id of its group."""
        return self._process.pid

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """The command's output where it was started with a pipe."""
        return self._process.stdout

    @property
    def return_code(self) -> int | None:
        """The command's exit code (128 + signal), None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the command's end."""
        return await self._process.wait()

    def descendants(self) -> list[psutil.Process]:
        """Every live process below the guard, outermost first."""
        try:
            return list(self._guard.children(recursive=True))
        except psutil.NoSuchProcess:
            return []

    @property
    def frozen(self) -> bool:
        """Whether everything below the guard is stopped."""
        return self._rest is not None

    async def freeze(self) -> None:
        """Stop everything below the guard; the guard stays awake, to end it with the judge.

        Raises:
            EngineFailure: the command is gone, or something does not come to rest.
        """
        if self._rest is None:
            self._rest = await freezing.freeze(self.pid)

    async def thaw(self) -> None:
        """Let everything go on.

        Raises:
            EngineFailure: the command is gone, or something ran while it was frozen.
        """
        if self._rest is not None:
            rest, self._rest = self._rest, None
            freezing.thaw(self.pid, rest)

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Ask the command to finish, then kill all of it, and verify that nothing is left.

        Raises:
            SpecPilotError: a process survived SIGKILL, such as one stuck in a driver.
        """
        everyone = [self._guard, *self.descendants()]
        if self._process.returncode is None:
            # A stopped command would keep SIGTERM waiting; freezing may have been cut off half way.
            self._rest = None
            _send(everyone, signal.SIGCONT)
            _send(self._commands(), signal.SIGTERM)
            if not await self._ended(grace_seconds):
                everyone += self.descendants()
                _send([self._guard], signal.SIGHUP)
                await self._ended(grace_seconds)
        alive = [process for process in everyone if _lives(process)]
        _send(alive, signal.SIGKILL)
        await self._process.wait()
        await _verify_gone(everyone)

    def _commands(self) -> list[psutil.Process]:
        # bubblewrap ends at once on SIGTERM and takes the command with it: ask the command.
        chain = self.descendants()
        return [process for process in chain if _name(process) not in ("bwrap", "")][:1]

    async def _ended(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def _verify_gone(processes: Sequence[psutil.Process], seconds: float = 5.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while survivors := [process for process in processes if _lives(process)]:
        if asyncio.get_running_loop().time() > deadline:
            raise SpecPilotError(
                f"process {survivors[0].pid} is still there after SIGKILL",
                where="sandbox",
                fix="free the device by hand before the next run",
            )
        await asyncio.sleep(0.02)


def last_line(log: Path) -> str:
    """The last non-empty line of a log, for one-line messages; empty when there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        # The end alone: a server may write more than this process can hold.
        stream.seek(max(log.stat().st_size - _LOG_TAIL_BYTES, 0))
        lines = stream.read(_LOG_TAIL_BYTES).decode(errors="replace").splitlines()
    return next((one_line(line) for line in reversed(lines) if line.strip()), "")

"""Supervises one command so that nothing of it outlives the process that asked for it.

Runs as a program of its own (`python -I -S guard.py PARENT_PID LARGEST_FILE COMMAND ...`), on the
standard library alone; no file that the command writes grows beyond LARGEST_FILE bytes (-1: no
limit). The kernel sends it SIGHUP when its parent dies, however it dies; it then
kills the command and every descendant, those that left its session included, because it is their
subreaper. When the command ends by itself its left-over descendants are killed and the guard exits
with the command's code.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
CANNOT_START = 126
"""Exit code when the command cannot be executed, as a shell gives it."""
WATCHED = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def main(arguments: list[str]) -> int:
    """Start the command and supervise it; returns the exit code."""
    parent, largest_file, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(SET_CHILD_SUBREAPER, 1)
    _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGHUP)
    if os.getppid() != parent:
        # The parent died before the request above took effect: no signal will come.
        return 128 + signal.SIGHUP
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, guard, largest_file)
    return _supervise(child)


def _become(command: list[str], guard: int, largest_file: int) -> None:
    try:
        _limit_files(largest_file)
        _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(128 + signal.SIGHUP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_START)


def _limit_files(largest: int) -> None:
    _, held = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest >= 0 and not 0 <= held < largest:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def _supervise(child: int) -> int:
    """Wait for the command's end or for an order to end it.

    SIGTERM and SIGINT are left to the command, which gets them from whoever sends them to the
    group: a guard that ended first would take away its chance to finish.
    """
    while True:
        received = signal.sigwait(WATCHED)
        if received == signal.SIGHUP:
            kill_descendants(os.getpid())
            return 128 + signal.SIGHUP
        if received == signal.SIGCHLD:
            status = _reap(child)
            if status is not None:
                kill_descendants(os.getpid())
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


def _reap(child: int) -> int | None:
    """Collect every child that ended; the wait status of `child` if it is one of them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def kill_descendants(root: int, seconds: float = 10.0) -> None:
    """Kill until no descendant of `root` is left: one may fork while it is being looked for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = _descendants(root)
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            except PermissionError:
                continue
        _reap(-1)
        time.sleep(0.005)


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            # The name is in parentheses and may hold any character; the rest follows the last one.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

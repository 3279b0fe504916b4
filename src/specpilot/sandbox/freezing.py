"""Stops every process below a guard, and shows afterwards that none of them ran meanwhile.

A process cannot leave this tree: a guard is the reaper of orphans, and so is the first process of a
namespace, whose members are ordinary children when seen from outside. What a stopped process can
still arrange is to be woken (a timer may send SIGCONT), so thawing compares processor time and
process ids with what was there when the tree came to rest.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specpilot.core.errors import EngineFailure

_AT_REST = frozenset("TtZX")
"""States of /proc/PID/stat in which a process does not run: stopped, traced, dead."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SLACK_TICKS = 2
"""Of a whole tree: threads run on for a moment after the first one reads as stopped."""
_DEAD = -1
"""Stands for the time of a process that had ended before, and may be reaped at any moment."""
_POLL_SECONDS = 0.0005


class Seen(NamedTuple):
    """One process in one reading of /proc."""

    pid: int
    parent: int
    state: str
    started: int
    """Ticks since boot; with the pid it names a process for good."""
    ticks: int
    """Processor time of all its threads."""


Rest = Mapping[tuple[int, int], int]
"""(pid, started) -> processor time in ticks of every process of a frozen tree."""


async def freeze(root: int, *, seconds: float = 5.0) -> Rest:
    """Stop everything below `root`, not `root` itself, until a reading shows nothing awake.

    Raises:
        EngineFailure: nothing is there, or something does not come to rest in time.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = below(root)
        if not any(process.state not in "ZX" for process in found):
            raise _failure("cannot be frozen: its process is gone", root)
        awake = [process for process in found if process.state not in _AT_REST]
        if not awake:
            return {
                (process.pid, process.started): _DEAD if process.state in "ZX" else process.ticks
                for process in found
            }
        if asyncio.get_running_loop().time() > deadline:
            resume(root)
            raise _failure(f"cannot be frozen: process {awake[0].pid} does not stop", root)
        _send(awake, signal.SIGSTOP, root)
        await asyncio.sleep(_POLL_SECONDS)


def thaw(root: int, rest: Rest) -> None:
    """Let a frozen tree go on.

    Raises:
        EngineFailure: it is gone, or it ran while it was frozen. What is left goes on all the same.
    """
    found = resume(root)
    if not any(process.state not in "ZX" for process in found):
        raise _failure("cannot be thawed: its process is gone", root)
    used, missing = 0, {name for name, ticks in rest.items() if ticks != _DEAD}
    for process in found:
        before = rest.get((process.pid, process.started))
        if before is None:
            raise _failure(f"started process {process.pid} while it was frozen", root)
        missing.discard((process.pid, process.started))
        used += 0 if before == _DEAD else process.ticks - before
    if missing:
        raise _failure(f"ended process {min(missing)[0]} while it was frozen", root)
    if used > _SLACK_TICKS:
        seconds = used / _TICKS_PER_SECOND
        raise _failure(f"used {seconds:.2f} s of processor time while it was frozen", root)


def resume(root: int) -> list[Seen]:
    """Continue everything below `root`, whatever state it is in; gives what was there before."""
    found = below(root)
    _send(found, signal.SIGCONT, root)
    return found


def below(root: int) -> list[Seen]:
    """Every process below `root`, zombies included, as /proc shows them now."""
    children: dict[int, list[Seen]] = {}
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdigit()]
    for name in names:
        if (process := _read(name)) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Seen] = []
    pending = [root]
    while pending:
        nearest = children.get(pending.pop(), [])
        found += nearest
        pending += [process.pid for process in nearest]
    return found


def _read(pid: str) -> Seen | None:
    # Read some hundred times a turn: a file object of its own would double the cost.
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        raw = os.read(descriptor, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    # The name is in parentheses and may hold any character; the rest follows the last one.
    fields = raw.rpartition(b")")[2].split()
    return Seen(
        pid=int(pid),
        parent=int(fields[1]),
        state=fields[0].decode(),
        started=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
    )


def _send(processes: Iterable[Seen], number: signal.Signals, root: int) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
        except PermissionError as error:
            raise _failure(f"process {process.pid} cannot be signalled", root) from error


def _failure(what: str, root: int) -> EngineFailure:
    return EngineFailure(what, where=f"server under guard {root}", fix="see the server's log")

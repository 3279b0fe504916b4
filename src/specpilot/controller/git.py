"""Git by subprocess, with nothing of the user's configuration in effect, and never for long.

An agent's repository has a configuration of its own, and whatever files the agent put there: a
command that waits for a pipe that nobody writes to is ended with all that it started.
"""

import errno
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specpilot.controller.off_loop import SECONDS, Halt, current_halt
from specpilot.controller.own_time import OwnTime
from specpilot.core.errors import SpecPilotError
from specpilot.sandbox.foreign import one_line

_FIXED = {
    "GIT_AUTHOR_NAME": "SpecPilot",
    "GIT_AUTHOR_EMAIL": "specpilot@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "SpecPilot",
    "GIT_COMMITTER_EMAIL": "specpilot@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
}
"""Fixed names and dates: equal trees on equal parents are equal commits."""


_LARGEST_ANSWER = 64 * 2**20
"""Bytes; far more than any command on a source tree answers. Nested trees can name billions of
files in a few kilobytes."""
_LARGEST_FILE = 256 * 2**20
"""Bytes of one file that a command may write, such as a pack of what an agent committed."""
_LIMITED = ("/bin/sh", "-c", f'ulimit -f {_LARGEST_FILE // 512} 2>&-; exec "$@"', "sh")
"""POSIX counts file sizes in blocks of 512 bytes. Where a lower limit holds already, raising it is
refused, and the lower one stays."""


class GitError(SpecPilotError):
    """A git command failed."""


def git(
    folder: Path,
    *arguments: str,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
    allowed: Sequence[int] = (0,),
    seconds: float = SECONDS,
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command in a folder, hooks off.

    Raises:
        GitError: it ended with a status outside `allowed`, took longer than `seconds`, or the
            folder is gone.
    """
    # With separate accounts a worktree belongs to its agent; reading it is what we are here for.
    settings = ("core.hooksPath=/dev/null", "gc.auto=0", "safe.directory=*")
    command = [*_LIMITED, "git", *(part for item in settings for part in ("-c", item)), *arguments]
    halt = current_halt()
    seconds = min(seconds, halt.remaining)
    variables = {"PATH": os.environ["PATH"], **_FIXED, **(environment or {})}
    try:
        done = _run(command, folder, stdin, variables, seconds, halt)
    except subprocess.TimeoutExpired as error:
        raise _failure(folder, arguments[0], f"did not end in {seconds:.0f} s") from error
    except OSError as error:
        raise _failure(folder, arguments[0], error.strerror or "did not start") from error
    if done.returncode not in allowed:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        reason = message[-1] if message else str(done.returncode)
        raise _failure(folder, arguments[0], one_line(reason))
    return done


def output(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Standard output of one git command, stripped."""
    return git(folder, *arguments, stdin=stdin).stdout.decode().strip()


def _run(
    command: Sequence[str],
    folder: Path,
    stdin: bytes | None,
    environment: dict[str, str],
    seconds: float,
    halt: Halt,
) -> subprocess.CompletedProcess[bytes]:
    # A session of its own, so that the helpers which git starts can be ended with it.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(stdin or b"")
        given.seek(0)
        with subprocess.Popen(
            command,
            cwd=folder,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
        ) as process:
            out = _answer(process, command, seconds, halt)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, out, errors.read(2**16))


def _answer(
    process: subprocess.Popen[bytes], command: Sequence[str], seconds: float, halt: Halt
) -> bytes:
    """Everything that a command answers; it and its helpers are ended at either limit."""
    late, over = threading.Event(), threading.Event()

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def watch() -> None:
        time = OwnTime(seconds)
        while not over.wait(time.next_look):
            if not time.left:
                late.set()
                end()
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        assert process.stdout is not None
        with halt.ending(end):
            out = process.stdout.read(_LARGEST_ANSWER + 1)
            if len(out) > _LARGEST_ANSWER:
                end()
            process.wait()
    except BaseException:
        end()
        raise
    finally:
        over.set()
    if late.is_set():
        raise subprocess.TimeoutExpired(command, seconds)
    if len(out) > _LARGEST_ANSWER:
        raise OSError(errno.EFBIG, f"answers more than {_LARGEST_ANSWER >> 20} MiB")
    return out


def _failure(folder: Path, command: str, why: str) -> GitError:
    return GitError(
        f"git {command} failed ({why})",
        where=str(folder),
        fix="check that the folder is intact and the disk is not full",
    )

"""Running a controller in front of a person: start it, show its journal, end with it."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpilot.cli.display import Display
from specpilot.cli.follow import Follower
from specpilot.cli.output import say
from specpilot.cli.runs import JOURNAL_FILE
from specpilot.core.errors import ExitCode, SpecPilotError

POLL_SECONDS = 0.25
END_SECONDS = 60.0
"""Time in which an interrupted controller ends its servers and agents."""


def drive(folder: Path, display: Display) -> int:
    """Run the controller of a run folder to its end; returns its exit code.

    An interrupt ends it in order; the run can be resumed. Further ones change nothing: an impatient
    one would cut off the end of servers and agents.

    Raises:
        SpecPilotError: the controller failed and could not say why.
    """
    log = controller_log(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    follower = Follower(folder / JOURNAL_FILE)
    command = [sys.executable, "-P", "-m", "specpilot.controller", f"--run={folder}"]
    # From before its start: an exception right after it would leave the controller to run on alone.
    with _noted_interrupts() as interrupts:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = None
            while code is None and not interrupts:
                code = _poll(process)
                display.show(follower.new_lines())
        except BaseException:
            # A reader that left, or a line that cannot be shown: the controller must not run on.
            _end(process)
            raise
        if code is None:
            _end(process)
            display.close()
            say(f"stopped; continue with 'specpilot resume {folder}'", err=True)
            return int(ExitCode.INTERRUPTED)
    display.close()
    _explain(code, log)
    return code


def controller_log(folder: Path) -> Path:
    """Standard error of a run's controller: empty unless it failed."""
    return folder / "logs" / "controller.log"


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """The interrupts since the block was entered, instead of an exception at any line of it.

    After the first one the command is ending, so later ones are swallowed beyond the block too.
    """
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        if not received:
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _poll(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _explain(code: int, log: Path) -> None:
    """What the controller said on standard error, when it ended badly: one line."""
    if code < 0:
        raise SpecPilotError(
            f"the controller was ended by signal {-code}",
            where=str(log.parent.parent),
            fix=f"see {log}, then run 'specpilot resume'",
        )
    if not log.exists():
        raise SpecPilotError(
            "was removed or moved while the run went on",
            where=str(log.parent.parent),
            fix="put it back and run 'specpilot resume', or start again",
        )
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if code != 0 and lines:
        say(f"error: {lines[-1]}", err=True)
    elif code == ExitCode.ERROR:
        # On a full disk the log stays empty.
        free = shutil.disk_usage(log.parent).free
        raise SpecPilotError(
            f"the controller failed and its log is empty ({free >> 10} KiB are free)",
            where=str(log),
            fix="free disk space, then run 'specpilot resume'",
        )

"""One exception family of the judge; the class decides the exit code of the command line."""

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `specpilot` command."""

    OK = 0
    ERROR = 1
    NOTHING_PROMOTED = 2
    VOID = 3
    BUDGET_SPENT = 4
    REFUSED = 5
    INTERRUPTED = 130
    """After Ctrl-C, as a shell gives it."""


class SpecPilotError(Exception):
    """A failure that a user can act on: what failed, where, and what to do."""

    exit_code = ExitCode.ERROR

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(f"{where}: {what}; {fix}")
        self.what = what
        self.where = where
        self.fix = fix


class DeploymentError(SpecPilotError):
    """A deployment file is unreadable, has an unknown key, or a value of a wrong type."""


class WorkloadError(SpecPilotError):
    """A request file is missing, malformed, or too small for the split that was asked for."""


class JournalError(SpecPilotError):
    """The journal is corrupted, locked by another writer, or cannot be written."""


class DamagedRun(SpecPilotError):
    """A file of the run folder is gone or is not what the journal says.

    No `Refused`, so that nothing takes it for a verdict on a candidate.
    """


class EngineFailure(SpecPilotError):
    """A server under test did not start, answered an error, or vanished: the run is void."""

    exit_code = ExitCode.VOID


class BudgetSpent(SpecPilotError):
    """A limit of the deployment's budget is reached."""

    exit_code = ExitCode.BUDGET_SPENT


class Refused(SpecPilotError):
    """The controller does not do this: isolation too weak, path out of bounds, sealed set."""

    exit_code = ExitCode.REFUSED


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def of_system(error: OSError, *, where: str) -> SpecPilotError:
    """What the operating system refused, as a line for a user.

    Args:
        where: names the place when the error does not; a write that fails names no file.
    """
    if error.errno in _FULL:
        fix = "free disk space, then go on with the same command or 'specpilot resume'"
    elif error.errno in _FORBIDDEN:
        fix = "check who may write there"
    else:
        fix = "check the path and the disk"
    named = error.filename if isinstance(error.filename, str) else None
    what = error.strerror or str(error) or type(error).__name__
    return SpecPilotError(f"failed ({what})", where=named or where, fix=fix)

"""Git by subprocess, with nothing of the user's or an agent's configuration in effect."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from specpilot.core.errors import SpecPilotError

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


class GitError(SpecPilotError):
    """A git command failed."""


def git(
    folder: Path,
    *arguments: str,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
    allowed: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[bytes]:
    """Run one git command in a folder, hooks off.

    Raises:
        GitError: it ended with a status outside `allowed`.
    """
    # With separate accounts a worktree belongs to its agent; reading it is what we are here for.
    settings = ("core.hooksPath=/dev/null", "gc.auto=0", "safe.directory=*")
    command = ["git", *(part for item in settings for part in ("-c", item)), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env={"PATH": os.environ["PATH"], **_FIXED, **(environment or {})},
        check=False,
    )
    if done.returncode not in allowed:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(
            f"git {arguments[0]} failed ({message[-1] if message else done.returncode})",
            where=str(folder),
            fix="check that the folder is intact and the disk is not full",
        )
    return done


def output(folder: Path, *arguments: str, stdin: bytes | None = None) -> str:
    """Standard output of one git command, stripped."""
    return git(folder, *arguments, stdin=stdin).stdout.decode().strip()

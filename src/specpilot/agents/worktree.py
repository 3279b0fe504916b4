"""Edits and commits in a direction's worktree, for agents that need no language model.

The controller takes a commit's tree and writes a commit of its own, so nothing here is trusted.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from specpilot.core.errors import SpecPilotError
from specpilot.core.system import OptionValue

OPTIONS_FILE = "system.toml"
_SETTINGS = ("core.hooksPath=/dev/null", "commit.gpgsign=false", "safe.directory=*")
_FIXED_DATE = "2000-01-01T00:00:00Z"


def edit_options(worktree: Path, changes: Mapping[str, OptionValue]) -> None:
    """Replace the values of options in `system.toml`, each on its own line.

    Raises:
        SpecPilotError: the file has no such option.
    """
    path = worktree / OPTIONS_FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, value in changes.items():
        found = [index for index, line in enumerate(lines) if _option_of(line) == name]
        if not found:
            raise SpecPilotError(
                f"has no option '{name}'", where=str(path), fix="use an option of the catalogue"
            )
        lines[found[0]] = f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    path.write_text("".join(lines), encoding="utf-8")


def apply_patch(worktree: Path, patch: bytes) -> None:
    """Apply a git patch to the files of the worktree.

    Raises:
        SpecPilotError: it does not apply.
    """
    _git(worktree, "apply", "--whitespace=nowarn", "-", stdin=patch)


def commit(worktree: Path, message: str, paths: Sequence[str] = (".",)) -> str:
    """Commit what changed under `paths`, if anything did; returns the latest commit's id."""
    _git(worktree, "add", "--", *paths)
    if _git(worktree, "diff", "--cached", "--name-only"):
        _git(worktree, "commit", "--quiet", "--no-verify", "-m", message)
    return head(worktree)


def head(worktree: Path) -> str:
    """The id of the latest commit."""
    return _git(worktree, "rev-parse", "HEAD").decode().strip()


def restore(worktree: Path, commit_id: str) -> None:
    """Put branch, index and tracked files back to a commit."""
    _git(worktree, "reset", "--quiet", "--hard", commit_id)


def _option_of(line: str) -> str:
    head, separator, _ = line.partition("=")
    return head.strip() if separator and not line.startswith("#") else ""


def _git(worktree: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    settings = [part for item in _SETTINGS for part in ("-c", item)]
    names = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in (
            ("NAME", "SpecPilot agent"),
            ("EMAIL", "agent@localhost"),
            ("DATE", _FIXED_DATE),
        )
    }
    done = subprocess.run(
        ["git", *settings, *arguments],
        cwd=worktree,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", **names},
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise SpecPilotError(
            f"git {arguments[0]} failed ({lines[-1] if lines else done.returncode})",
            where=str(worktree),
            fix="look at the worktree with 'git status'",
        )
    return done.stdout

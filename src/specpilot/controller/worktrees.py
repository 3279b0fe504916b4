"""A repository that an agent had in its hands: what git may read of it, and getting rid of it.

Whatever lies there may be missing, unreadable or of another kind than it was. All of that is the
agent's, or an unlucky moment's, and never the end of the run.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpilot.controller.off_loop import go_on
from specpilot.core.errors import Refused, SpecPilotError
from specpilot.sandbox.foreign import one_line

_BORROWED = ("commondir", "objects/info/alternates", "objects/info/http-alternates")
_LARGEST_CONFIG = 2**20
"""Bytes; git writes a few hundred."""
_FIX = "leave the worktree's .git folder alone"


def check_repository(folder: Path) -> None:
    """Refuse a `.git` folder that git would wait for, follow elsewhere, or could not read.

    Raises:
        Refused: it is none; it holds a link, a pipe, a socket or a device; it borrows objects,
            shares another repository's folder or includes configuration; or it cannot be read.
    """
    with _readable(folder):
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise Refused("is not the repository it was made with", where=str(folder), fix=_FIX)
        _check_plain(folder)
        _check_alone(folder)


def move_aside(path: Path, aside: Path) -> None:
    """Keep a folder as it is under another name, in place of what had that name before.

    Raises:
        SpecPilotError: the disk or the rights of its files do not allow it.
    """
    with _movable(path):
        if os.path.lexists(aside):
            _remove(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        if _is_folder(path):
            # A folder that its owner may not write to keeps its parent.
            path.chmod(stat.S_IRWXU)
        path.rename(aside)


def remove(path: Path) -> None:
    """Delete a folder, read-only parts included.

    Raises:
        SpecPilotError: the disk or the rights of its files do not allow it.
    """
    with _movable(path):
        _remove(path)


def _check_alone(folder: Path) -> None:
    found = [name for name in _BORROWED if os.path.lexists(folder / name)]
    if not found and b"[include" in _content(folder / "config").lower():
        found = ["config"]
    if found:
        raise Refused(
            "refers to files outside the repository", where=str(folder / found[0]), fix=_FIX
        )


def _content(path: Path) -> bytes:
    # The agent may be at work: what was a file a moment ago may be a pipe by now.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise Refused("is no file", where=str(path), fix=_FIX)
        with os.fdopen(number, "rb", closefd=False) as stream:
            content = stream.read(_LARGEST_CONFIG + 1)
    finally:
        os.close(number)
    if len(content) > _LARGEST_CONFIG:
        raise Refused(f"holds more than {_LARGEST_CONFIG} bytes", where=str(path), fix=_FIX)
    return content


def _check_plain(folder: Path) -> None:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for place, folders, files in os.walk(folder, onerror=fail):
        for name in (*folders, *files):
            go_on()
            path = Path(place, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                # The agent's own git is at work; what matters is what is there.
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Refused("is neither a file nor a folder", where=one_line(str(path)), fix=_FIX)


def _remove(path: Path) -> None:
    if not _is_folder(path):
        path.unlink()
        return
    path.chmod(stat.S_IRWXU)
    for place, folders, _ in os.walk(path):
        for name in folders:
            inner = Path(place, name)
            if _is_folder(inner):
                # Before it is entered: one that cannot be listed is passed over.
                inner.chmod(stat.S_IRWXU)
    shutil.rmtree(path)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(
            f"cannot be read ({error.strerror})",
            where=one_line(str(error.filename or folder)),
            fix=_FIX,
        ) from error


@contextmanager
def _movable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecPilotError(
            f"cannot be moved away ({error.strerror})",
            where=one_line(str(error.filename or path)),
            fix="make room on the disk or delete the folder by hand, then resume",
        ) from error

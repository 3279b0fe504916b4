"""One command at a time works on a run folder: who comes second is told so and changes nothing.

The lock is on the folder itself, so it leaves no file behind, goes with whoever held it, however
that one ended, and stays with a folder that is renamed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpilot.core.errors import Refused, SpecPilotError
from specpilot.core.file_locks import lock_alone


@contextmanager
def claimed(folder: Path, *, make: bool = False) -> Iterator[None]:
    """Hold a run folder while the block works on it.

    Args:
        make: create the folder where it is missing.

    Raises:
        Refused: another command holds it.
        SpecPilotError: it cannot be made or opened.
    """
    held = _lock(folder, make=make)
    try:
        yield
    finally:
        os.close(held)


def _lock(folder: Path, *, make: bool) -> int:
    while True:
        try:
            if make:
                folder.mkdir(parents=True, exist_ok=True)
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            verb, fix = ("made", "choose another --run") if make else ("opened", "check the path")
            raise SpecPilotError(
                f"cannot be {verb} ({error.strerror})", where=str(folder), fix=fix
            ) from error
        try:
            lock_alone(held)
        except BlockingIOError as error:
            os.close(held)
            raise Refused(
                "is being worked on by another command",
                where=str(folder),
                fix="wait for its end, or give another --run",
            ) from error
        if _is_still(folder, held):
            return held
        # Renamed between opening and locking: what bears the name now is another folder.
        os.close(held)


def _is_still(folder: Path, held: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(held))
    except FileNotFoundError:
        return False

"""Files of the controller alone: written once, readable by its user only."""

import os
from collections.abc import Callable
from pathlib import Path

from specpilot.core.errors import DamagedRun

_SECRET_BYTES = 32


def write_once(path: Path, content: bytes) -> bool:
    """Write a file that no later call replaces; whether it was not there before."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    try:
        # A link, unlike a rename, never replaces a file that is there.
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink()
    return True


def draw_secret() -> str:
    """A secret that nobody can guess, as hexadecimal digits."""
    return os.urandom(_SECRET_BYTES).hex()


def kept_secret(path: Path, draw: Callable[[], str], *, known: bool = False) -> str:
    """The secret of a run folder; drawn when there is none.

    Args:
        known: whether the run has used it already, so that none may be drawn in its place.

    Raises:
        DamagedRun: the file does not hold one, or is lost.
    """
    if not known and not path.exists():
        write_once(path, draw().encode())
    try:
        secret = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedRun(
            f"the secret cannot be read ({type(error).__name__})",
            where=str(path),
            fix="restore the file, or start a new run",
        ) from error
    if len(secret) != 2 * _SECRET_BYTES:
        raise DamagedRun("holds no secret", where=str(path), fix="start a new run")
    return secret

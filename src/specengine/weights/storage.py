"""Writing to a disk that may be full."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

from specengine.errors import EngineError

_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Name the file and the way on where the disk refuses to take bytes.

    Raises:
        EngineError: it does.
    """
    try:
        yield
    except OSError as error:
        cure = "free space" if error.errno in _SPACE else "check folder and disk"
        raise EngineError(
            f"cannot be written ({error.strerror})",
            where=str(path),
            fix=f"{cure}, then repeat the same command: finished tensors are kept",
        ) from error


def write_all(file: RawIOBase, octets: memoryview) -> None:
    """Write to an unbuffered file, which may take fewer bytes than it is given."""
    done = 0
    while done < len(octets):
        done += file.write(octets[done:]) or 0

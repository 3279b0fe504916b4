"""Byte ranges of a file as tensors, read in pieces."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

from specengine.errors import CheckpointError

_FIX = "download or encode it again"
PIECE = 1 << 24
"""Bytes of a tensor that are read at once where nothing else sets a size."""


class DataFile:
    """A file whose byte ranges are read without moving a shared position, from any thread.

    Use as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> "DataFile":
        self._descriptor = os.open(self.path, os.O_RDONLY)
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._descriptor)

    def read(self, begin: int, end: int, room: torch.Tensor | None = None) -> torch.Tensor:
        """uint8 [end - begin], in `room` of that size where it is given.

        Raises:
            CheckpointError: the file ends before, cannot be read, or the range is none.
        """
        size = os.fstat(self._descriptor).st_size
        if not 0 <= begin <= end <= size:
            raise self._fault(f"has no bytes {begin} to {end}, it ends at {size}")
        buffer = torch.empty(end - begin, dtype=torch.uint8) if room is None else room
        view = octets_of(buffer)
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._descriptor, [view[done:]], begin + done)
            except OSError as error:
                raise self._fault(f"cannot be read ({error.strerror})") from error
            if count == 0:
                raise self._fault(f"ends at byte {begin + done}")
            done += count
        return buffer

    def pieces(self, begin: int, end: int) -> Iterator[torch.Tensor]:
        """The range in pieces."""
        for start in range(begin, end, PIECE):
            yield self.read(start, min(end, start + PIECE))

    def _fault(self, what: str) -> CheckpointError:
        return CheckpointError(what, where=str(self.path), fix=_FIX)


def octets_of(array: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, for hashes and files."""
    return array.flatten().view(torch.uint8).numpy().data

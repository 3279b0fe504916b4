"""Reading a journal while its controller writes it."""

from pathlib import Path

from pydantic import ValidationError

from specpilot.controller.journal import JournalLine
from specpilot.core.errors import JournalError


class Follower:
    """Gives each whole line once. The chain of hashes is checked by whoever needs proof."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> tuple[JournalLine, ...]:
        """Lines since the last call; a line that is still being written waits.

        Raises:
            JournalError: a whole line is no event.
        """
        if not self._path.exists():
            return ()
        if self._path.stat().st_size < self._offset:
            # A torn last line was taken back when the controller started again.
            self._offset = self._path.read_bytes().rfind(b"\n") + 1
            return ()
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            data = stream.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return tuple(self._line(line) for line in data[:whole].split(b"\n") if line)

    def _line(self, raw: bytes) -> JournalLine:
        try:
            return JournalLine.model_validate_json(raw)
        except ValidationError as error:
            raise JournalError(
                f"holds a line that is no event ({raw[:60]!r})",
                where=str(self._path),
                fix="restore it from a copy; 'specpilot status' names the line",
            ) from error

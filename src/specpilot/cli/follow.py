"""Reading a journal while its controller writes it."""

from pathlib import Path

from specpilot.controller.journal import JournalLine


class Follower:
    """Gives each whole line once. The chain of hashes is checked by whoever needs proof."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_lines(self) -> tuple[JournalLine, ...]:
        """Lines since the last call; a line that is still being written waits."""
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
        return tuple(JournalLine.model_validate_json(line) for line in data[:whole].splitlines())

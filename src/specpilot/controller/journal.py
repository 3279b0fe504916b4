"""The run's only memory: append-only lines, fsynced, hash-chained, written by one process.

Each line is `{"seq","time","kind","data","previous","hash"}`; `hash` covers the other five fields,
`previous` is the hash of the line before. A last line that was cut off by a crash is dropped with a
notice; damage anywhere else is an error that names the line. What could not be written whole is
taken back, so that a full disk loses nothing that was there.
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specpilot.core.errors import JournalError
from specpilot.core.file_locks import lock_alone
from specpilot.core.numbers import Count
from specpilot.core.record import Record, canonical_json, content_hash
from specpilot.loop.events import Event, parse_event
from specpilot.sandbox.foreign import one_line

FIRST_PREVIOUS = "0" * 64
"""`previous` of the first line."""


class JournalLine(Record):
    """One line as it lies on the disk."""

    seq: Count
    time: str
    """UTC, ISO 8601."""
    kind: str
    data: dict[str, Any]
    previous: str
    hash: str

    def event(self) -> Event:
        """The event that the line holds."""
        return parse_event(self.kind, self.data)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a journal file holds.

    Attributes:
        lines: all whole lines, checked.
        bytes_whole: length of the file up to the last whole line.
        torn: whether a cut-off line followed.
    """

    lines: tuple[JournalLine, ...]
    bytes_whole: int
    torn: bool

    def events(self) -> tuple[Event, ...]:
        """The events of all lines."""
        return tuple(line.event() for line in self.lines)


def read_journal(path: Path) -> Reading:
    """Read and check a journal without locking it; a missing file reads as an empty journal.

    Raises:
        JournalError: a line other than a cut-off last one is damaged, or holds no event that this
            version knows; or the file is unreadable.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raw = b""
    except OSError as error:
        raise _failure(path, f"cannot be read ({error.strerror})", "check the path") from error
    whole = raw.rfind(b"\n") + 1
    lines: list[JournalLine] = []
    previous = FIRST_PREVIOUS
    for number, text in enumerate(raw[:whole].splitlines(), start=1):
        line = _parse_line(path, number, text, previous)
        lines.append(line)
        previous = line.hash
    return Reading(tuple(lines), whole, whole < len(raw))


class Journal:
    """The writer. Opening takes the lock; `append` returns only once the line is on the disk."""

    def __init__(self, path: Path) -> None:
        """Open or create a journal and take back a cut-off last line.

        Raises:
            JournalError: another writer holds it, it is damaged, or it cannot be written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise _failure(
                path, f"cannot be opened ({error.strerror})", "check permissions and free space"
            ) from error
        try:
            lock_alone(self._descriptor)
            reading = read_journal(path)
            os.ftruncate(self._descriptor, reading.bytes_whole)
            self._sync_folder()
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise _failure(
                path, "is being written by another controller", "stop that run first"
            ) from error
        except JournalError:
            os.close(self._descriptor)
            raise
        self.reading = reading
        self._size = reading.bytes_whole
        self._previous = reading.lines[-1].hash if reading.lines else FIRST_PREVIOUS
        self._seq = len(reading.lines)

    def append(self, event: Event) -> JournalLine:
        """Write one event and make it durable.

        Raises:
            JournalError: the line could not be written whole; the file is as it was before.
        """
        data = event.to_json()
        kind = data.pop("kind")
        body = {
            "seq": self._seq,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "data": data,
            "previous": self._previous,
        }
        line = JournalLine(**body, hash=content_hash(body))
        self._write(canonical_json(line.to_json()).encode() + b"\n")
        self._previous = line.hash
        self._seq += 1
        return line

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def _write(self, encoded: bytes) -> None:
        written = 0
        try:
            while written < len(encoded):
                written += os.write(self._descriptor, encoded[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            raise _failure(
                self.path,
                f"line {self._seq + 1} cannot be written ({error.strerror})",
                "free disk space or check permissions, then run 'specpilot resume'",
            ) from error
        self._size += len(encoded)

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _parse_line(path: Path, number: int, text: bytes, previous: str) -> JournalLine:
    fix = "restore the run folder from a copy; lines before this one are intact"
    try:
        # As text, because bytes may begin with a mark that other readers refuse.
        line = JournalLine.model_validate(json.loads(text.decode()))
    except (ValueError, ValidationError, RecursionError) as error:
        raise _failure(path, f"line {number} is damaged", fix) from error
    body = line.to_json()
    del body["hash"]
    if line.hash != content_hash(body):
        raise _failure(path, f"line {number} does not match its hash", fix)
    if line.previous != previous or line.seq != number - 1:
        raise _failure(path, f"line {number} does not follow the line before it", fix)
    try:
        line.event()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != line.kind)
        raise _failure(
            path,
            f"line {number} is whole and no event of this version "
            f"({one_line(f'{line.kind} {place}: ' + first['msg'])})",
            "use the version that wrote it, which the first line names",
        ) from error
    return line


def _failure(path: Path, what: str, fix: str) -> JournalError:
    return JournalError(what, where=str(path), fix=fix)

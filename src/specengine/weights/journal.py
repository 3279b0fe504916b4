"""What an unfinished shard holds so far: one line for each finished tensor, safe against damage.

Each line carries its own hash, so that a torn or altered one is left out together with all that
follow it. A journal is replaced as a whole or extended; at no time is less on disk than was there.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specengine.weights.manifest import StoredShard, StoredTensor
from specengine.weights.storage import storing, write_all

_MARK_DIGITS = 16
"""Hexadecimal digits of a line's hash."""


@dataclass(slots=True)
class Reading:
    """The lines of a journal up to the first that is damaged."""

    identity: str | None = None
    """What the data depends on."""
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    """In the order of their data."""
    shard: StoredShard | None = None
    """Where the shard was finished."""


def read_journal(path: Path) -> Reading:
    """What a journal says; nothing where there is none."""
    reading = Reading()
    octets = path.read_bytes() if path.is_file() else b""
    for line in octets.split(b"\n")[:-1]:
        mark, _, text = line.partition(b" ")
        if mark != _mark(text):
            break
        try:
            entry = json.loads(text)
            if "tensor" in entry:
                reading.tensors[entry["name"]] = StoredTensor.model_validate(entry["tensor"])
            elif "shard" in entry:
                reading.shard = StoredShard.model_validate(entry["shard"])
            else:
                reading.identity = entry["identity"]
        except (ValueError, KeyError, TypeError, RecursionError, ValidationError):
            break
    return reading


class Journal:
    """A journal that is written to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, identity: str, kept: dict[str, StoredTensor]) -> None:
        """Begin, or go on.

        Args:
            identity: what the data depends on.
            kept: tensors of an earlier run that stay.
        """
        entries = [{"identity": identity}, *(_entry(*item) for item in kept.items())]
        fresh = self.path.with_name(self.path.name + ".new")
        with storing(fresh):
            fresh.write_bytes(b"".join(_line(entry) for entry in entries))
            fresh.replace(self.path)
            self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()

    def add_tensor(self, name: str, tensor: StoredTensor) -> None:
        """Note a tensor whose data is written."""
        self._add(_entry(name, tensor))

    def add_shard(self, shard: StoredShard) -> None:
        """Note that the shard is complete."""
        self._add({"shard": shard.model_dump(mode="json")})

    def _add(self, entry: dict[str, Any]) -> None:
        with storing(self.path):
            write_all(self._file, memoryview(_line(entry)))


def journal_of(path: Path) -> Path:
    """Where the journal of a shard lies."""
    return path.with_name(path.name + ".journal")


def _entry(name: str, tensor: StoredTensor) -> dict[str, Any]:
    return {"name": name, "tensor": tensor.model_dump(mode="json")}


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry).encode()
    return _mark(text) + b" " + text + b"\n"


def _mark(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_MARK_DIGITS].encode()

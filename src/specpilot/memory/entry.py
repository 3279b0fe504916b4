"""One memory entry: a folder with `entry.toml`, `delta.patch` and `evidence.json`.

The folder is addressed by its content: its name ends in the hash of the three files, so an entry
that was changed is another entry, or none.
"""

import hashlib
import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from specpilot.core.errors import Refused
from specpilot.core.record import Record, canonical_json
from specpilot.core.system import OptionValue, TreeHash

FILES = ("entry.toml", "delta.patch", "evidence.json")
ID_DIGITS = 16


class Entry(Record):
    """`entry.toml`."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    """The mechanism, such as `best_first_tree`."""
    summary: str
    requires: tuple[str, ...] = ()
    """Ids of entries whose deltas come first, in order."""
    options: dict[str, OptionValue]
    """What the promotion changed in `system.toml`."""
    variants: tuple[dict[str, OptionValue], ...] = ()
    """Other settings of the mechanism that were measured."""
    correctness: str
    """Contract that makes it lossless, and how it was tested."""
    limits: tuple[str, ...] = ()
    """Where it was measured, and where it lost."""
    untested: tuple[str, ...] = ()
    """Regimes that nobody has measured."""
    engine: str
    """Engine kind whose source tree the delta is against."""
    device_kind: str
    """`cpu` or `cuda`."""
    stock_tree: TreeHash
    """Stock that requirements and delta were applied to."""
    source_tree: TreeHash
    """What they must give, byte for byte."""


class StoredEntry(Record):
    """An entry with its delta and evidence."""

    entry: Entry
    delta: bytes
    evidence: dict[str, Any]

    @property
    def id(self) -> str:
        """Name and content hash; names the folder."""
        digest = hashlib.sha256()
        for name, data in self.files().items():
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        return f"{self.entry.name}-{digest.hexdigest()[:ID_DIGITS]}"

    def files(self) -> dict[str, bytes]:
        """The folder's content; one spelling per entry."""
        table = self.entry.model_dump(mode="json")
        return {
            "entry.toml": tomli_w.dumps(table).encode(),
            "delta.patch": self.delta,
            "evidence.json": canonical_json(self.evidence).encode() + b"\n",
        }


def write_entry(folder: Path, stored: StoredEntry) -> Path:
    """Write an entry below `folder`, whole or not at all; returns its own folder."""
    target = folder / stored.id
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # A folder of its own: another process may be writing the same entry.
    with tempfile.TemporaryDirectory(prefix=f".{stored.id}.", dir=folder) as place:
        partial = Path(place, "entry")
        partial.mkdir()
        for name, data in stored.files().items():
            (partial / name).write_bytes(data)
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def read_entry(folder: Path) -> StoredEntry:
    """Read an entry and check that its folder's name is its content.

    Raises:
        Refused: a file is missing or malformed, or the content is not what the name says.
    """
    data: dict[str, bytes] = {}
    for name in FILES:
        try:
            data[name] = (folder / name).read_bytes()
        except OSError as error:
            raise _refused(folder / name, f"cannot be read ({error.strerror})") from error
    stored = parse_entry(data, str(folder))
    if stored.id != folder.name:
        raise _refused(folder, f"holds {stored.id}: its content was changed")
    return stored


def parse_entry(data: dict[str, bytes], where: str) -> StoredEntry:
    """An entry from the bytes of its three files.

    Raises:
        Refused: a file is malformed.
    """
    try:
        return StoredEntry(
            entry=Entry.model_validate(tomllib.loads(data["entry.toml"].decode())),
            delta=data["delta.patch"],
            evidence=json.loads(data["evidence.json"]),
        )
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError, ValueError) as error:
        line = str(error).splitlines()[0]
        raise Refused(
            f"is not a memory entry ({line})", where=where, fix="export or admit it again"
        ) from error


def _refused(path: Path, what: str) -> Refused:
    return Refused(what, where=str(path), fix="delete the folder; import or admit the entry again")

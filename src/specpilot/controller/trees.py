"""What may be in a candidate's tree, and the git hash of a folder computed without git."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from specpilot.core.errors import Refused
from specpilot.sandbox.foreign import one_line

WRITABLE = ("specengine/", "system.toml")
"""A change may touch nothing else (`agents.Brief.writable_paths`)."""
_FILE_MODES = ("100644", "100755")
_INTERPRETER_HOOKS = ("sitecustomize.py", "usercustomize.py")
_LONGEST_PATH = 255
_COMPILED = (".pth", ".pyc", ".so", ".egg-link")


class Entry(NamedTuple):
    """One file of a tree."""

    mode: str
    blob: str
    path: str


class ForbiddenPath(Refused):
    """A change touches what it may not."""


def parse_entries(raw: bytes) -> tuple[Entry, ...]:
    """Entries of `git ls-tree -r -z`."""
    entries = []
    for item in raw.split(b"\0"):
        if item:
            meta, _, path = item.partition(b"\t")
            mode, _, blob = meta.decode().split(" ")
            entries.append(Entry(mode, blob, _name(path)))
    return tuple(entries)


def _name(path: bytes) -> str:
    """A path that can be written to this disk and into the journal.

    Raises:
        ForbiddenPath: not UTF-8, not printable, or longer than a file system takes.
    """
    shown = one_line(path.decode(errors="backslashreplace"), 120)
    try:
        name = path.decode()
    except UnicodeDecodeError as error:
        raise _forbidden(shown, "is not UTF-8") from error
    if not name.isprintable():
        raise _forbidden(shown, "holds control characters")
    if len(path) > _LONGEST_PATH:
        raise _forbidden(shown, f"is longer than {_LONGEST_PATH} bytes")
    return name


def check_changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> None:
    """Refuse links, submodules, interpreter hooks, binaries, and files outside `WRITABLE`.

    Raises:
        ForbiddenPath: names the first path at fault.
    """
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        if path != "system.toml" and not path.startswith("specengine/"):
            raise _forbidden(path, f"is outside {' and '.join(WRITABLE)}")
        entry = after.get(path)
        if entry is None:
            continue
        if entry.mode not in _FILE_MODES:
            raise _forbidden(path, "is a link or a submodule")
        name = path.rsplit("/", 1)[-1]
        if name in _INTERPRETER_HOOKS or name.endswith(_COMPILED) or "__pycache__" in path:
            raise _forbidden(path, "would be loaded without being reviewed as source")


def tree_hash_of_folder(folder: Path) -> str:
    """Git's tree hash of a folder's files, from the bytes on the disk."""
    return _hash_folder(folder).hex()


def _hash_folder(folder: Path) -> bytes:
    items: list[tuple[str, bytes, bytes]] = []
    for path in folder.iterdir():
        if path.is_symlink():
            raise _forbidden(str(path), "is a link")
        if path.is_dir():
            items.append((f"{path.name}/", b"40000", _hash_folder(path)))
        else:
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            items.append((path.name, mode, _object_hash(b"blob", path.read_bytes())))
    return _object_hash(b"tree", _tree_body(sorted(items)))


def _tree_body(items: Iterable[tuple[str, bytes, bytes]]) -> bytes:
    return b"".join(
        b"%s %s\0%s" % (mode, name.removesuffix("/").encode(), digest)
        for name, mode, digest in items
    )


def _object_hash(kind: bytes, body: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0%s" % (kind, len(body), body), usedforsecurity=False).digest()


def _forbidden(path: str, why: str) -> ForbiddenPath:
    return ForbiddenPath(
        why, where=path, fix=f"change only regular files under {' and '.join(WRITABLE)}"
    )

"""What may be in a candidate's tree, and the git hash of a folder computed without git."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from specpilot.core.errors import Refused
from specpilot.sandbox.foreign import one_line

WRITABLE = ("specengine/", "system.toml")
"""A change may touch nothing else (`agents.Brief.writable_paths`)."""
SUFFIXES = ("py", "cu", "cuh", "cpp", "h", "hpp", "toml", "json", "md", "txt")
"""Kinds of files that a change may add or edit: source and text, read by reviewers as such."""
MOST_FILES = 2000
LARGEST_FILE = 512 * 2**10
LARGEST_CHANGE = 2 * 2**20
"""Bytes of one file, and of all files that a change adds or edits."""
_DEEPEST = 8
_FILE_MODES = ("100644", "100755")
_FOLDER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_FILE = re.compile(rf"[A-Za-z_][A-Za-z0-9_-]*\.({'|'.join(SUFFIXES)})", re.ASCII)
_LOADED_UNASKED = ("sitecustomize.py", "usercustomize.py", "__pycache__")
_LONGEST_PATH = 255


class Entry(NamedTuple):
    """One file of a tree."""

    mode: str
    blob: str
    size: int
    """Bytes; 0 of what is no file."""
    path: str


class ForbiddenPath(Refused):
    """A change touches what it may not."""


def parse_entries(raw: bytes) -> tuple[Entry, ...]:
    """Entries of `git ls-tree -r -l -z`."""
    entries = []
    for item in raw.split(b"\0"):
        if item:
            meta, _, path = item.partition(b"\t")
            mode, _, blob, size = meta.decode().split()
            entries.append(Entry(mode, blob, 0 if size == "-" else int(size), _name(path)))
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


def check_changes(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> tuple[Entry, ...]:
    """What a change adds or edits, where all of it is allowed.

    Raises:
        ForbiddenPath: names the first path at fault.
    """
    if len(after) > MOST_FILES:
        raise _forbidden(f"{len(after)} files", f"are more than {MOST_FILES}")
    changed = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path):
            continue
        if path != "system.toml" and not path.startswith("specengine/"):
            raise _forbidden(path, f"is outside {' and '.join(WRITABLE)}")
        if path in after:
            _check_entry(after[path])
            changed.append(after[path])
    if (size := sum(entry.size for entry in changed)) > LARGEST_CHANGE:
        raise _forbidden(f"{len(changed)} files", f"hold {size} bytes, {LARGEST_CHANGE} may change")
    if changed:
        _check_twins(after)
    return tuple(changed)


def _check_entry(entry: Entry) -> None:
    path = entry.path
    if entry.mode not in _FILE_MODES:
        raise _forbidden(path, "is a link or a submodule")
    *folders, name = path.split("/")
    if any(part.casefold() in _LOADED_UNASKED for part in (*folders, name)):
        raise _forbidden(path, "would be loaded without being reviewed as source")
    if not all(map(_FOLDER.fullmatch, folders)) or len(folders) > _DEEPEST:
        raise _forbidden(path, "lies in a folder whose name no package has")
    if not _FILE.fullmatch(name):
        raise _forbidden(path, f"is no name of ASCII letters that ends in .{', .'.join(SUFFIXES)}")
    if entry.size > LARGEST_FILE:
        raise _forbidden(path, f"holds {entry.size} bytes, more than {LARGEST_FILE}")


def _check_twins(after: Mapping[str, Entry]) -> None:
    """Refuse names that some file systems and readers take for one."""
    seen: dict[str, str] = {}
    for path in after:
        for end in [place for place, letter in enumerate(path) if letter == "/"] + [len(path)]:
            part = path[:end]
            if (twin := seen.setdefault(part.casefold(), part)) != part:
                raise _forbidden(path, f"differs from {twin} by capital letters alone")


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

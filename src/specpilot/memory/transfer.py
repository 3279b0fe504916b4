"""Carrying entries between machines as one zip file, without trusting the file.

Nothing is extracted: members are read by exact name and size, parsed, checked against their id, and
then written by the registry.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from specpilot.core.errors import Refused
from specpilot.memory.entry import FILES, StoredEntry, parse_entry
from specpilot.memory.registry import Registry

MAX_FILE_BYTES = 32 << 20
MAX_MEMBERS = 3000
_FIXED_TIME = (2000, 1, 1, 0, 0, 0)


def export_entries(registry: Registry, names: Sequence[str], path: Path) -> tuple[str, ...]:
    """Write entries and all that they require; returns the ids written, requirements first.

    Raises:
        Refused: an entry or a requirement is missing or changed, or the file exists.
    """
    if path.exists():
        raise Refused("exists already", where=str(path), fix="choose another file name")
    chosen: dict[str, StoredEntry] = {}
    for name in names:
        stored = registry.find(name)
        for item in (*registry.requirements(stored), stored):
            chosen[item.id] = item
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for entry_id, item in chosen.items():
                for file_name, data in item.files().items():
                    archive.writestr(zipfile.ZipInfo(f"{entry_id}/{file_name}", _FIXED_TIME), data)
    except OSError:
        # Half a file would look like an export, and stop the next one.
        path.unlink(missing_ok=True)
        raise
    return tuple(chosen)


def import_entries(registry: Registry, path: Path) -> tuple[str, ...]:
    """Read an exported file into the registry; returns the ids, requirements first.

    An imported entry is a claim: it is offered to a run only after `verify` on that run's stock.

    Raises:
        Refused: not such a file, a strange member, or content that is not what its id says.
    """
    if path.exists() and not path.is_file():
        raise Refused("is no file", where=str(path), fix="give the file of a memory export")
    try:
        with zipfile.ZipFile(path) as archive:
            found = _read(archive, path)
    except (OSError, zipfile.BadZipFile, RuntimeError) as error:
        raise Refused(
            f"is not a memory export ({error})", where=str(path), fix="export the entries again"
        ) from error
    written: list[str] = []
    waiting = dict(found)
    while waiting:
        here = {*registry.ids()}
        ready = [i for i, item in sorted(waiting.items()) if here.issuperset(item.entry.requires)]
        if not ready:
            raise _strange(path, f"lacks what {next(iter(waiting))} requires")
        for entry_id in ready:
            registry.add(waiting.pop(entry_id))
            written.append(entry_id)
    return tuple(written)


def _read(archive: zipfile.ZipFile, path: Path) -> dict[str, StoredEntry]:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise _strange(path, f"holds {len(members)} members")
    data: dict[str, dict[str, bytes]] = {}
    for member in members:
        folder, _, name = member.filename.partition("/")
        if name not in FILES or folder in ("", ".", "..") or "\\" in folder:
            raise _strange(path, f"holds the strange member {member.filename!r}")
        if member.file_size > MAX_FILE_BYTES:
            raise _strange(path, f"holds {member.filename!r} of {member.file_size} bytes")
        with archive.open(member) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES or name in data.get(folder, {}):
            raise _strange(path, f"holds {member.filename!r} twice or longer than it says")
        data.setdefault(folder, {})[name] = content
    found = {}
    for entry_id, files in data.items():
        if set(files) != set(FILES):
            raise _strange(path, f"holds an incomplete entry {entry_id}")
        stored = parse_entry(files, f"{path}: {entry_id}")
        if stored.id != entry_id:
            raise _strange(path, f"holds {stored.id} under the name {entry_id}")
        found[entry_id] = stored
    return found


def _strange(path: Path, what: str) -> Refused:
    return Refused(what, where=str(path), fix="do not import it; ask for a fresh export")

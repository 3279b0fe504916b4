"""A folder of entries and the graph of what they require."""

from pathlib import Path

from specpilot.core.errors import Refused
from specpilot.memory.entry import StoredEntry, read_entry, write_entry


class Registry:
    """Entries below one folder; every read checks content against name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ids(self) -> tuple[str, ...]:
        """Ids of all entries, sorted."""
        if not self.folder.is_dir():
            return ()
        return tuple(
            sorted(
                path.name
                for path in self.folder.iterdir()
                if path.is_dir() and not path.name.startswith(".")
            )
        )

    def path(self, entry_id: str) -> Path:
        """Folder of an entry.

        Raises:
            Refused: there is no such entry.
        """
        if entry_id not in self.ids():
            raise Refused(
                f"has no entry '{entry_id}'",
                where=str(self.folder),
                fix="see 'specpilot memory list'",
            )
        return self.folder / entry_id

    def get(self, entry_id: str) -> StoredEntry:
        """One entry, checked.

        Raises:
            Refused: there is none, or it was changed.
        """
        return read_entry(self.path(entry_id))

    def find(self, name_or_id: str) -> StoredEntry:
        """An entry by id, or by name where only one has it.

        Raises:
            Refused: none, or several.
        """
        found = [i for i in self.ids() if i == name_or_id or i.rpartition("-")[0] == name_or_id]
        if len(found) > 1:
            raise Refused(
                f"has {len(found)} entries named '{name_or_id}'",
                where=str(self.folder),
                fix=f"use an id: {', '.join(found)}",
            )
        return self.get(found[0] if found else name_or_id)

    def add(self, stored: StoredEntry) -> Path:
        """Keep an entry whose requirements are here.

        Raises:
            Refused: a requirement is missing.
        """
        self.requirements(stored)
        return write_entry(self.folder, stored)

    def requirements(self, stored: StoredEntry) -> tuple[StoredEntry, ...]:
        """What must be applied before an entry, in order, each once.

        Raises:
            Refused: a requirement is missing, changed, or requires itself.
        """
        ordered: dict[str, StoredEntry] = {}
        self._visit(stored, ordered, ())
        return tuple(ordered.values())

    def _visit(
        self, stored: StoredEntry, ordered: dict[str, StoredEntry], above: tuple[str, ...]
    ) -> None:
        for entry_id in stored.entry.requires:
            if entry_id in above:
                raise Refused(
                    f"requires itself through {' -> '.join((*above, entry_id))}",
                    where=str(self.folder / entry_id),
                    fix="delete one of these entries",
                )
            if entry_id not in ordered:
                required = self.get(entry_id)
                self._visit(required, ordered, (*above, entry_id))
                ordered[entry_id] = required

"""Admission: an entry is kept only if it reproduces its source system exactly.

The entry's requirements and its delta are applied to stock in a fresh repository that holds nothing
else; the resulting git tree must have the source system's hash (paper section 3.4).
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from specpilot.controller.git import GitError
from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import Refused
from specpilot.memory.entry import StoredEntry
from specpilot.memory.registry import Registry


def apply_entries(stock: Mapping[str, bytes], entries: Sequence[StoredEntry]) -> str:
    """Tree hash of stock with the entries' deltas applied in order.

    Args:
        stock: relative POSIX path -> bytes, `system.toml` included.

    Raises:
        Refused: a delta does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="specpilot-admission-") as folder:
        systems = SystemRepository(Path(folder))
        base = systems.commit_stock(stock)
        deltas = tuple(entry.delta for entry in entries if entry.delta.strip())
        try:
            return systems.apply_patches(base.commit, deltas)
        except GitError as error:
            raise Refused(
                f"does not apply to stock ({error.what})",
                where=f"memory entry {entries[-1].id}",
                fix="it was made for another version of the engine",
            ) from error


def verify_entry(registry: Registry, stored: StoredEntry, stock: Mapping[str, bytes]) -> None:
    """Check that an entry still gives its source system.

    Raises:
        Refused: another stock, a delta that does not apply, or another tree.
    """
    with tempfile.TemporaryDirectory(prefix="specpilot-stock-") as folder:
        found = SystemRepository(Path(folder)).commit_stock(stock).tree_hash
    if found != stored.entry.stock_tree:
        raise Refused(
            f"was made for stock {stored.entry.stock_tree[:12]}, and this one is {found[:12]}",
            where=f"memory entry {stored.id}",
            fix="use the engine version and stock options that the entry names",
        )
    tree = apply_entries(stock, (*registry.requirements(stored), stored))
    if tree != stored.entry.source_tree:
        raise Refused(
            f"gives tree {tree[:12]} instead of {stored.entry.source_tree[:12]}",
            where=f"memory entry {stored.id}",
            fix="it does not reproduce its source system; delete it",
        )


def admit(registry: Registry, stored: StoredEntry, stock: Mapping[str, bytes]) -> Path:
    """Verify an entry and keep it.

    Raises:
        Refused: it does not reproduce its source system.
    """
    verify_entry(registry, stored, stock)
    return registry.add(stored)

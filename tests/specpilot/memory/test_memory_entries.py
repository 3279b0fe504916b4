"""Entries reproduce their source exactly, and what was changed is refused."""

import os
import resource
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import Refused
from specpilot.memory.admission import admit, verify_entry
from specpilot.memory.entry import Entry, StoredEntry, read_entry, write_entry
from specpilot.memory.registry import Registry
from specpilot.memory.transfer import export_entries, import_entries

STOCK = {
    "specengine/a.py": b"one = 1\ntwo = 2\nthree = 3\n",
    "specengine/b/c.py": b"x = '\xc3\xa4'\n",
    "system.toml": b'# Tree.\ntree = "chain"\n\n# Nodes.\nnodes = 0\n',
}


def entry_between(
    folder: Path,
    before: dict[str, bytes],
    after: dict[str, bytes],
    *,
    name: str = "m",
    requires: tuple[str, ...] = (),
) -> StoredEntry:
    """The entry whose delta leads from one tree to another."""
    systems = SystemRepository(folder)
    trees = {}
    for key, files in (("stock", STOCK), ("before", before), ("after", after)):
        trees[key] = systems.commit_stock(files)
    delta = systems.patch(trees["before"].commit, trees["after"].commit)
    entry = Entry(
        name=name,
        summary="s",
        requires=requires,
        options={"nodes": 8},
        correctness="c",
        engine="embedded",
        device_kind="cpu",
        stock_tree=trees["stock"].tree_hash,
        source_tree=trees["after"].tree_hash,
    )
    return StoredEntry(entry=entry, delta=delta, evidence={"gain": None})


def edited(**changes: bytes) -> dict[str, bytes]:
    """Stock with one file changed."""
    return STOCK | {"specengine/a.py": changes["a"]}


contents = st.dictionaries(
    st.sampled_from(["specengine/a.py", "specengine/b/c.py", "specengine/new.py", "system.toml"]),
    st.binary(max_size=60),
    min_size=1,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=contents)
def test_an_admitted_entry_gives_its_source_tree(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("entry")
    after = STOCK | changes
    if not after["system.toml"].strip():
        after = after | {"system.toml": STOCK["system.toml"]}
    try:
        stored = entry_between(folder / "repository", STOCK, after)
    except Refused:
        return  # system.toml is not TOML any more: no system, no entry
    registry = Registry(folder / "memory")
    path = admit(registry, stored, STOCK)
    assert read_entry(path) == stored
    verify_entry(registry, read_entry(path), STOCK)


def two_entries(folder: Path) -> tuple[Registry, StoredEntry, StoredEntry]:
    """A registry with an entry, and another one that requires it."""
    registry = Registry(folder / "memory")
    first_tree = edited(a=b"one = 1\ntwo = 22\nthree = 3\n")
    first = entry_between(folder / "r1", STOCK, first_tree, name="first")
    second_tree = first_tree | {"specengine/a.py": b"one = 1\ntwo = 22\nthree = 33\n"}
    second = entry_between(
        folder / "r2", first_tree, second_tree, name="second", requires=(first.id,)
    )
    admit(registry, first, STOCK)
    admit(registry, second, STOCK)
    return registry, first, second


def test_requirements_come_first(tmp_path: Path) -> None:
    registry, first, second = two_entries(tmp_path)
    assert registry.requirements(second) == (first,)
    assert registry.find("second") == second


def test_an_entry_without_its_requirement_is_not_kept(tmp_path: Path) -> None:
    _, _, second = two_entries(tmp_path)
    with pytest.raises(Refused, match="no entry"):
        Registry(tmp_path / "empty").add(second)


@pytest.mark.parametrize("file", ["delta.patch", "entry.toml", "evidence.json"])
def test_a_changed_file_is_refused(tmp_path: Path, file: str) -> None:
    registry, first, _ = two_entries(tmp_path)
    path = registry.path(first.id) / file
    path.write_bytes(path.read_bytes().replace(b"2", b"7").replace(b"null", b"1"))
    with pytest.raises(Refused, match=r"changed|is not a memory entry"):
        registry.get(first.id)


def test_an_entry_renamed_after_a_change_does_not_verify(tmp_path: Path) -> None:
    registry, first, _ = two_entries(tmp_path)
    forged = first.model_copy(update={"delta": first.delta.replace(b"two = 22", b"two = 66")})
    with pytest.raises(Refused, match="gives tree"):
        verify_entry(registry, forged, STOCK)
    with pytest.raises(Refused, match="gives tree"):
        admit(registry, forged, STOCK)
    assert forged.id not in registry.ids()


def test_another_stock_is_refused(tmp_path: Path) -> None:
    registry, first, _ = two_entries(tmp_path)
    with pytest.raises(Refused, match="was made for stock"):
        verify_entry(registry, first, STOCK | {"specengine/z.py": b"\n"})


def test_a_delta_that_does_not_apply_is_refused(tmp_path: Path) -> None:
    registry, _, second = two_entries(tmp_path)
    alone = second.model_copy(update={"entry": second.entry.model_copy(update={"requires": ()})})
    with pytest.raises(Refused, match=r"does not apply|gives tree"):
        verify_entry(registry, alone, STOCK)


def test_a_circle_of_requirements_is_refused(tmp_path: Path) -> None:
    registry, _, second = two_entries(tmp_path)
    circle = second.entry.model_copy(update={"requires": (second.id,)})
    folder = registry.path(second.id)
    looped = second.model_copy(update={"entry": circle})
    # Content addressing makes a circle impossible to store; it is found while visiting, too.
    assert looped.id != folder.name
    with pytest.raises(Refused, match="requires itself"):
        registry._visit(looped, {}, (second.id,))


def test_export_and_import_carry_entries_with_their_requirements(tmp_path: Path) -> None:
    registry, first, second = two_entries(tmp_path)
    archive = tmp_path / "entries.zip"
    assert export_entries(registry, ["second"], archive) == (first.id, second.id)
    other = Registry(tmp_path / "other")
    assert import_entries(other, archive) == (first.id, second.id)
    assert other.get(second.id) == second
    with pytest.raises(Refused, match="exists"):
        export_entries(registry, ["second"], archive)


def archive_of(path: Path, members: dict[str, bytes]) -> Path:
    """A zip file with these members."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    "name",
    ["../entry.toml", "/etc/entry.toml", "a/b/entry.toml", "x/../../entry.toml", "x/other", "x\\y"],
)
def test_strange_members_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    archive = archive_of(tmp_path / "evil.zip", {name: b"x"})
    registry = Registry(tmp_path / "memory")
    with pytest.raises(Refused, match="strange member"):
        import_entries(registry, archive)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.zip"]


def test_an_entry_under_another_name_is_refused(tmp_path: Path) -> None:
    _, first, _ = two_entries(tmp_path)
    files = {f"{'first-' + '0' * 16}/{name}": data for name, data in first.files().items()}
    with pytest.raises(Refused, match="under the name"):
        import_entries(Registry(tmp_path / "other"), archive_of(tmp_path / "x.zip", files))


def test_an_import_without_a_requirement_is_refused(tmp_path: Path) -> None:
    _, _, second = two_entries(tmp_path)
    files = {f"{second.id}/{name}": data for name, data in second.files().items()}
    with pytest.raises(Refused, match="lacks what"):
        import_entries(Registry(tmp_path / "other"), archive_of(tmp_path / "x.zip", files))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(Refused, match="not a memory export"):
        import_entries(Registry(tmp_path / "other"), tmp_path / "x.zip")


def test_two_writers_of_one_entry_leave_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = entry_between(tmp_path / "git", STOCK, edited(a=b"one = 2\n"))
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        write_entry(tmp_path / "memory", stored)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    written = write_entry(tmp_path / "memory", stored)

    assert read_entry(written) == stored
    assert [item.name for item in written.parent.iterdir()] == [stored.id]


def test_an_export_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    stored = entry_between(tmp_path / "git", STOCK, edited(a=os.urandom(3000).hex().encode()))
    registry = Registry(tmp_path / "memory")
    registry.add(stored)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            export_entries(registry, [stored.id], tmp_path / "all.zip")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "all.zip").exists()


def test_an_import_reads_files_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused, match="is no file"):
        import_entries(Registry(tmp_path / "memory"), tmp_path / "pipe")

"""Files whole or not at all, on a disk that is full in between."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot.core.errors import SpecPilotError
from specpilot.core.whole_files import write_whole


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may grow beyond 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_and_their_folder_are_written(tmp_path: Path) -> None:
    write_whole(tmp_path / "a/b", {"x.json": "τ\n", "y.csv": ""})
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "a/b").iterdir()} == {
        "x.json": "τ\n",
        "y.csv": "",
    }


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("before", encoding="utf-8")
    with pytest.raises(SpecPilotError, match="free disk space"):
        write_whole(tmp_path, {"x.json": "after", "y.csv": 200 * "y"})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text("utf-8") == "before"


@pytest.mark.parametrize("place", ["x.json", "x.json/under"])
def test_a_place_that_is_taken_is_named_and_nothing_else_is_left(
    place: str, tmp_path: Path
) -> None:
    taken = tmp_path / "x.json"
    if place == "x.json":
        taken.mkdir()
        folder = tmp_path
    else:
        taken.write_text("file", encoding="utf-8")
        folder = taken / "under"
    with pytest.raises(SpecPilotError, match=r"x\.json"):
        write_whole(folder, {"x.json": "text"})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]

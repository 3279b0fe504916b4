"""The journal loses nothing that was there, and says what is wrong with it."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.journal import Journal, JournalLine, read_journal
from specpilot.core.errors import JournalError
from specpilot.core.record import canonical_json, content_hash
from specpilot.loop.events import Noticed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def write(path: Path, count: int) -> None:
    journal = Journal(path)
    for number in range(count):
        journal.append(Noticed(message=f"note {number} – μ"))
    journal.close()


def test_lines_chain_and_come_back_as_events(path: Path) -> None:
    write(path, 3)

    reading = read_journal(path)

    assert [line.seq for line in reading.lines] == [0, 1, 2]
    assert reading.lines[2].previous == reading.lines[1].hash
    assert reading.events()[1] == Noticed(message="note 1 – μ")


def test_reopening_goes_on_where_it_stopped(path: Path) -> None:
    write(path, 2)
    write(path, 1)

    assert len(read_journal(path).lines) == 3


def test_a_second_writer_is_refused(path: Path) -> None:
    journal = Journal(path)

    with pytest.raises(JournalError, match="another controller"):
        Journal(path)
    journal.close()
    Journal(path).close()


@given(cut=st.integers(1, 200))
def test_a_torn_last_line_is_dropped(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "journal.jsonl"
    write(path, 3)
    raw = path.read_bytes()
    last = len(raw) - len(raw.splitlines(keepends=True)[-1])
    path.write_bytes(raw[: min(last + cut, len(raw) - 1)])

    journal = Journal(path)

    assert journal.reading.torn
    assert len(journal.reading.lines) == 2
    journal.append(Noticed(message="after"))
    journal.close()
    assert len(read_journal(path).lines) == 3


@pytest.mark.parametrize("line", [0, 1, 2])
@given(position=st.integers(0, 10_000), value=st.integers(32, 126))
def test_any_damaged_byte_names_the_line(
    line: int, position: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "journal.jsonl"
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    place = position % (len(lines[line]) - 1)
    damaged = bytearray(lines[line])
    if damaged[place] == value:
        return
    damaged[place] = value
    lines[line] = bytes(damaged)
    path.write_bytes(b"".join(lines))

    with pytest.raises(JournalError, match=f"line {line + 1} "):
        read_journal(path)


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("noticed_later", {"message": "x"}, "noticed_later"),
        ("noticed", {"message": 3}, "noticed message: Input should be a valid string"),
        ("noticed", {"message": "x", "colour": "y"}, "colour"),
        ("noticed", {}, "Field required"),
    ],
)
def test_a_whole_line_of_another_version_is_named(
    path: Path, kind: str, data: dict[str, object], said: str
) -> None:
    """A run folder may be older than the program, or newer."""
    write(path, 2)
    previous = read_journal(path).lines[-1]
    body = {
        "seq": 2, "time": previous.time, "kind": kind, "data": data, "previous": previous.hash,
    }  # fmt: skip
    line = JournalLine(**body, hash=content_hash(body))
    with path.open("ab") as stream:
        stream.write(canonical_json(line.to_json()).encode() + b"\n")
    for reader in (read_journal, Journal):
        with pytest.raises(JournalError, match="line 3 is whole and no event of this") as caught:
            reader(path)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_removed_line_breaks_the_chain(path: Path) -> None:
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])

    with pytest.raises(JournalError, match="line 2 does not follow"):
        read_journal(path)


@pytest.mark.parametrize("written", [0, 7])
def test_a_full_disk_takes_the_partial_line_back(
    path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, 2)
    before = path.read_bytes()
    journal = Journal(path)
    real_write = os.write
    calls = 0

    def full(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1 and written:
            return real_write(descriptor, data[:written])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(JournalError, match=r"line 3 cannot be written .No space left") as caught:
        journal.append(Noticed(message="lost"))
    monkeypatch.undo()

    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    journal.append(Noticed(message="kept"))
    journal.close()
    assert len(read_journal(path).lines) == 3


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "file" / "journal.jsonl")

"""Ends that are no verdict: an interrupt, a damaged journal under a watching front."""

from pathlib import Path

import pytest

from specpilot.cli import main
from specpilot.cli.follow import Follower
from specpilot.cli.output import Finished
from specpilot.core.errors import JournalError


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Finished(130)

    monkeypatch.setattr(main, "build_app", lambda: interrupted)
    assert main.run(["optimize", "x.toml"]) == 130


@pytest.mark.parametrize("damage", [b"not json\n", b"\xff\n", b"[1]\n", b'{"seq": 1}\n'])
def test_a_damaged_line_is_one_error_that_names_the_file(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(damage)
    with pytest.raises(JournalError, match=r"journal\.jsonl"):
        Follower(path).new_lines()

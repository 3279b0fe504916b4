"""The table of public failures names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parents[1] / "docs" / "engine.md"


def test_every_test_of_the_table_exists():
    rows = re.findall(r"\| `(\S+\.py)` \| `(test_\w+)` \|", PAGE.read_text(encoding="utf-8"))
    assert len(rows) > 30
    for file, name in rows:
        source = (TESTS / file).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in source, f"{file} has no {name}"

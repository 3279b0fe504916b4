"""What an agent may write into `system.toml`, and what ends as a refusal instead of a crash."""

import pytest

from specpilot.controller.options_file import catalogue, edit_options, parse_options
from specpilot.core.errors import Refused

PLAIN = b'# Shape.\ntree = "chain"\n\n# Rows.\nnodes = 3\n'


def test_plain_options_are_read_and_edited() -> None:
    assert parse_options(PLAIN, "x") == {"tree": "chain", "nodes": 3}
    assert parse_options(edit_options(PLAIN, {"nodes": 8}), "x")["nodes"] == 8
    assert [option.explanation for option in catalogue(PLAIN, "x")] == ["Shape.", "Rows."]


@pytest.mark.parametrize(
    "raw",
    [
        b"x = nan\n",
        b"x = inf\n",
        b"x = [1]\n",
        b"[x]\ny = 1\n",
        b"x = " + b"[" * 5000 + b"]" * 5000 + b"\n",
        b"x = " + b"9" * 5000 + b"\n",
        b"x = 1\n  # y = 3\n",
        b'"x" = 1\n',
        b"x = 'a\xe9'\n",
        b"x = 1\nx = 2\n",
        b'x = """a = 1\nb = 2"""\n',
    ],
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_options(raw, "system.toml")


@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_strings_of_several_lines_are_refused(quotes: str) -> None:
    raw = f"tree = {quotes}\\\nchain{quotes}\n".encode()
    with pytest.raises(Refused, match=r"several lines|not valid TOML"):
        parse_options(raw, "system.toml")

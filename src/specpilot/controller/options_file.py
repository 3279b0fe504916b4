"""Reading and editing `system.toml`: one option a line, each after its comment."""

import difflib
import json
import tomllib
from collections.abc import Mapping
from math import isfinite

from specpilot.agents.base import CatalogueOption
from specpilot.core.errors import Refused
from specpilot.core.system import OptionValue

OPTIONS_FILE = "system.toml"
_SCALARS = (bool, int, float, str)


def parse_options(raw: bytes, where: str) -> dict[str, OptionValue]:
    """Options of a system.

    Raises:
        Refused: not TOML, or a value that is not a scalar.
    """
    try:
        table = tomllib.loads(raw.decode())
    # Beside the decoder's own errors: a number of thousands of digits, and nesting without end.
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"is not valid TOML ({error})", where=where, fix="correct the line named"
        ) from error
    for key, value in table.items():
        if not isinstance(value, _SCALARS) or (isinstance(value, float) and not isfinite(value)):
            raise Refused(
                f"option '{key}' is not a finite scalar",
                where=where,
                fix="use one value per option",
            )
    # Options are edited line by line, so every line must be the plain `name = value` it looks like.
    if b'"""' in raw or b"'''" in raw:
        raise Refused(
            "holds a string of several lines",
            where=where,
            fix="write one 'name = value' a line, comments at the line's start",
        )
    if (lines := _names(raw.decode())) != list(table):
        raise Refused(
            f"has lines {sorted(set(lines) ^ set(table))} that are no plain options",
            where=where,
            fix="write one 'name = value' a line, comments at the line's start",
        )
    return table


def edit_options(raw: bytes, changes: Mapping[str, OptionValue]) -> bytes:
    """The file with other values and everything else as it was.

    Raises:
        Refused: an option that the file does not have; names the nearest one.
    """
    lines = raw.decode().splitlines(keepends=True)
    names = {_name(line): index for index, line in enumerate(lines) if _name(line)}
    for key, value in changes.items():
        if key not in names:
            close = difflib.get_close_matches(key, list(names), n=1)
            fix = f"did you mean '{close[0]}'?" if close else f"options are {', '.join(names)}"
            raise Refused(f"unknown option '{key}'", where=OPTIONS_FILE, fix=fix)
        lines[names[key]] = f"{key} = {_spell(value)}\n"
    return "".join(lines).encode()


def catalogue(raw: bytes, where: str) -> tuple[CatalogueOption, ...]:
    """Options with the comments that precede them."""
    values = parse_options(raw, where)
    comments: list[str] = []
    found = []
    for line in raw.decode().splitlines():
        if line.startswith("#"):
            comments.append(line.lstrip("# "))
        elif name := _name(line):
            found.append(
                CatalogueOption(name=name, value=values[name], explanation=" ".join(comments))
            )
            comments = []
        elif not line.strip():
            comments = []
    return tuple(found)


def _names(text: str) -> list[str]:
    return [name for line in text.splitlines() if (name := _name(line))]


def _name(line: str) -> str:
    head, separator, _ = line.partition("=")
    return head.strip() if separator and not line.startswith("#") else ""


def _spell(value: OptionValue) -> str:
    return json.dumps(value, ensure_ascii=False)

"""How commands end and what they print: exit codes, JSON, colours."""

import codecs
import io
import json
import math
import os
import sys
from typing import Any

import typer


class Finished(Exception):
    """A command is done; carries its exit code past the argument parser."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        """An `ExitCode`, or 130 after an interrupt."""


def finite(value: float | None) -> float | None:
    """Callback of options that take a number: the parser's own ranges let NaN through.

    Raises:
        typer.BadParameter: not a finite number.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number")
    return value


def say(text: str, *, err: bool = False) -> None:
    """One line or more for people, in the stream's own encoding."""
    # Without a file, the parser's echo writes UTF-8 to a stream that says it is ASCII.
    typer.echo(text, file=sys.stderr if err else sys.stdout)


def one_line(text: object) -> str:
    """Text such as a path, whose line breaks are legal, with what no line shows escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def print_json(value: Any) -> None:
    """A fact for a program: one JSON document on standard output."""
    say(json_text(value, indent=1))


def json_text(value: Any, *, indent: int | None) -> str:
    """JSON as standard output can carry it: escaped where it is no Unicode, never altered."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    escaped = not encoding.lower().replace("-", "").startswith("utf")
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=escaped)


SPELLED = {
    "τ": "tau", "δ": "delta", "±": "+-", "×": "x", "·": "*", "…": "...", "→": "->", "≥": ">=",
    "≤": "<=", "–": "-", "—": "-", "“": '"', "”": '"', "’": "'",
}  # fmt: skip
"""What tables and lines hold, for terminals and files that know ASCII only."""


def degrade_output() -> None:
    """Let output lose a sign rather than end a command: words for ours, `?` for other text."""
    codecs.register_error("specpilot", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="specpilot")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(SPELLED.get(sign, "?") for sign in lost), error.end


def is_terminal() -> bool:
    """Whether a person watches and wants colours."""
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def number(value: float | None, form: str = ".1f", missing: str = "-") -> str:
    """A number for people; what was not measured is shown as missing."""
    return missing if value is None else format(value, form)

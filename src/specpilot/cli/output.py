"""How commands end and what they print: exit codes, JSON, colours."""

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


def print_json(value: Any) -> None:
    """A fact for a program: one JSON document on standard output."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False))


def is_terminal() -> bool:
    """Whether a person watches and wants colours."""
    return sys.stdout is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def number(value: float | None, form: str = ".1f", missing: str = "-") -> str:
    """A number for people; what was not measured is shown as missing."""
    return missing if value is None else format(value, form)

"""`specpilot ctl OPERATION`: what an agent asks the controller. Prints the answer as JSON."""

import json
from typing import Annotated, Any

import typer

from specpilot.agents.base import Operation
from specpilot.agents.ctl import call, socket_from_environment
from specpilot.cli.output import finite, print_json
from specpilot.core.errors import SpecPilotError


def command(
    operation: Annotated[Operation, typer.Argument(help="what to ask for")],
    option: Annotated[
        list[str] | None, typer.Option(help="headroom: NAME=VALUE, as often as needed")
    ] = None,
    method: Annotated[str | None, typer.Option(help="headroom: replay or microbenchmark")] = None,
    retry: Annotated[int | None, typer.Option(min=0, help="time, submit: time again")] = None,
    reason: Annotated[str | None, typer.Option(help="close: why")] = None,
    bound: Annotated[
        float | None, typer.Option(callback=finite, help="close: most it could gain, minus 1")
    ] = None,
) -> None:
    """Ask the controller of this direction; only works inside a run."""
    given = {
        "options": dict(_parse_option(item) for item in option) if option else None,
        "method": method,
        "retry": retry,
        "reason": reason,
        "bound": bound,
    }
    arguments = {key: value for key, value in given.items() if value is not None}
    print_json(call(socket_from_environment(), operation, arguments))


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _parse_option(text: str) -> tuple[str, Any]:
    name, separator, raw = text.partition("=")
    if not separator or not name:
        raise SpecPilotError("is not NAME=VALUE", where=f"--option {text}", fix="write nodes=32")
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except ValueError:
        value = raw
    return name.strip(), value

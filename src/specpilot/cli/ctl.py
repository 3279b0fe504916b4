"""`specpilot ctl`: an agent's only way to the controller."""

import json
from typing import Annotated

import typer

from specpilot.agents.base import Operation
from specpilot.agents.ctl import call, socket_from_environment
from specpilot.core.errors import Refused


def ctl(
    operation: Annotated[Operation, typer.Argument(help="What to ask for.")],
    arguments: Annotated[str, typer.Argument(help="Arguments as one JSON object.")] = "{}",
) -> None:
    """Ask the controller; prints its answer as JSON."""
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        raise Refused(
            f"arguments are not JSON ({error})", where="specpilot ctl", fix="give one JSON object"
        ) from error
    if not isinstance(parsed, dict):
        raise Refused(
            "arguments are not a JSON object", where="specpilot ctl", fix="such as '{\"retry\": 1}'"
        )
    typer.echo(json.dumps(call(socket_from_environment(), operation.value, parsed)))

"""Every command, argument and option of every program says what it is for."""

import argparse
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from specengine.server import command
from specengine.train.arguments import training_parser
from specengine.weights import __main__ as weights
from specpilot.cli.main import build_app


def unexplained(node: Any, path: str) -> Iterator[str]:
    """Commands and parameters below a command that have no help text."""
    if not (node.help or "").strip():
        yield path
    for parameter in node.params:
        # The parser explains its own `--help`.
        if not (parameter.help or "").strip():
            yield f"{path} {parameter.name}"
    for name, child in getattr(node, "commands", {}).items():
        yield from unexplained(child, f"{path} {name}")


def unexplained_of(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from unexplained_of(child, f"{path} {name}")
        elif not (action.help or "").strip():
            yield f"{path} {action.dest}"


def test_every_parameter_of_specpilot_has_a_help_text() -> None:
    root: Any = typer.main.get_command(build_app())
    assert len(root.commands) > 15
    assert list(unexplained(root, "specpilot")) == []


def no_run(_: argparse.Namespace) -> None:
    raise AssertionError("nothing runs")


@pytest.mark.parametrize(
    "parser",
    [training_parser(dict.fromkeys(("answers", "fit", "evaluate"), no_run)), weights._parser()],
    ids=["train", "weights"],
)
def test_every_option_of_the_engines_programs_has_a_help_text(
    parser: argparse.ArgumentParser,
) -> None:
    assert list(unexplained_of(parser, parser.prog)) == []


def test_every_option_of_the_server_has_a_help_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        seen.append(parser)
        return argparse.Namespace()

    monkeypatch.setattr(command.Parser, "parse_args", keep)
    command.parse_arguments([])
    assert list(unexplained_of(seen[0], "specengine.server")) == []

"""`specpilot train-drafter …`: the engine's trainer, as a process of its own."""

import subprocess
import sys

import typer

from specpilot.cli.output import Finished

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command(context: typer.Context) -> None:
    """Train a small drafter of any kind; arguments are those of `python -m specengine.train`."""
    program = [sys.executable, "-P", "-m", "specengine.train"]
    done = subprocess.run([*program, *context.args], check=False)
    raise Finished(0 if done.returncode == 0 else 1)

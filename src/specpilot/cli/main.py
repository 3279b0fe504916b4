"""`specpilot`: every command, and the boundary where errors become one line and an exit code."""

import sys

import typer

from specpilot.cli import ctl, demo, optimize, report, status
from specpilot.core.errors import ExitCode, SpecPilotError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Finds lossless speed for speculative decoding of one deployment.",
)
app.command()(demo.demo)
app.command()(optimize.optimize)
app.command()(optimize.resume)
app.command()(status.status)
app.command()(status.stop)
app.command()(report.report)
app.command()(ctl.ctl)


def main() -> None:
    """Run the command line; a failure that a user can act on is one line on standard error."""
    try:
        app()
    except SpecPilotError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(int(error.exit_code))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; continue with 'specpilot resume RUN'\n")
        sys.exit(int(ExitCode.ERROR))

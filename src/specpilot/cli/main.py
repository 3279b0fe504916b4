"""`specpilot`: every command, and the one place where errors become a line and an exit code."""

import os
import signal
import sys
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer

from specpilot.cli import (
    ceiling,
    ctl,
    demo,
    doctor,
    force,
    init,
    memory,
    optimize,
    plan,
    replay,
    report,
    resume,
    serve,
    status,
    stop,
    train_drafter,
    weights,
)
from specpilot.cli.output import Finished, degrade_output, one_line, say
from specpilot.core.errors import ExitCode, SpecPilotError, of_system

USAGE_ERROR = 2
"""Exit code that the argument parser gives; ours keeps 2 for 'nothing promoted'."""
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's, which has a public name in some of its versions only."""


def _show_version(asked: bool) -> None:
    if asked:
        say(f"specpilot {installed('specpilot')}")
        raise Finished(ExitCode.OK)


def build_app() -> typer.Typer:
    """The parser with all commands."""
    app = typer.Typer(
        name="specpilot",
        help="Finds lossless speed for speculative decoding, and proves that no token changed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    app.command("demo")(demo.command)
    app.command("init")(init.command)
    app.command("plan")(plan.command)
    app.command("doctor")(doctor.command)
    app.command("optimize")(optimize.command)
    app.command("resume")(resume.command)
    app.command("status")(status.command)
    app.command("stop")(stop.command)
    app.command("serve")(serve.command)
    app.command("force")(force.command)
    app.command("ceiling")(ceiling.command)
    app.command("replay")(replay.command)
    app.add_typer(memory.build_app(), name="memory")
    app.add_typer(weights.build_app(), name="weights")
    app.command("report")(report.command)
    app.command("ctl")(ctl.command)
    app.command("train-drafter", context_settings=train_drafter.CONTEXT)(train_drafter.command)
    return app


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
) -> None:
    """Finds lossless speed for speculative decoding, and proves that no token changed."""


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit code."""
    try:
        returned = build_app()(args=arguments, prog_name="specpilot", standalone_mode=False)
    except Finished as finished:
        return int(finished.code)
    except _UsageError as error:
        _explain_usage(error)
        return int(ExitCode.ERROR)
    except SpecPilotError as error:
        say(f"error: {one_line(error)}", err=True)
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader of our output left; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.ERROR)
    except OSError as error:
        failure = of_system(error, where=f"specpilot {' '.join(arguments)}")
        say(f"error: {one_line(failure)}", err=True)
        return int(failure.exit_code)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ExitCode.OK)
        return int(ExitCode.ERROR) if code == USAGE_ERROR else code
    # Some versions of the parser make an interrupt an exit code that they return, others raise.
    return _interrupted() if returned == ExitCode.INTERRUPTED else int(ExitCode.OK)


def _interrupted() -> int:
    say("interrupted", err=True)
    return int(ExitCode.INTERRUPTED)


def _explain_usage(error: Any) -> None:
    """One line for arguments that make no command; help where there were none."""
    where = "specpilot" if error.ctx is None else error.ctx.command_path
    what = error.format_message().removesuffix(".")
    if what:
        said = f"{where}: {what}; see '{where} -h'"
        say(f"error: {one_line(said)}", err=True)


def main() -> None:
    """Entry point of the installed command."""
    degrade_output()
    code = run(sys.argv[1:])
    # All is said: an interrupt now would replace the exit code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()

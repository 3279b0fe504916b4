"""The installed command: imports nothing heavy before an interrupt is answered in one line."""

import sys

from specpilot.core.errors import ExitCode


def main() -> None:
    """Entry point of `specpilot` and `python -m specpilot`."""
    try:
        from specpilot.cli import main as commands
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)
    commands.main()


if __name__ == "__main__":
    main()

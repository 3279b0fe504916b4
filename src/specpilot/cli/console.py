"""Where commands print tables: colours for people only, and text as it is."""

from rich.console import Console

from specpilot.cli.output import is_terminal


def console(width: int | None = None) -> Console:
    """A console that takes names and paths for what they are, whatever brackets they hold.

    Args:
        width: columns of what goes to a file or a pipe.
    """
    watched = is_terminal()
    return Console(
        no_color=not watched,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if watched else width,
    )

"""What servers and agents said, made fit for one line of a message and of the journal.

Foreign text may hold line breaks, terminal escapes, halves of surrogate pairs, which no file can be
written with, or a gigabyte.
"""

_LONGEST = 300


def one_line(text: str, limit: int = _LONGEST) -> str:
    """Printable text without line breaks, cut to `limit` characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    return " ".join(shown.split())[:limit]


def spoken(value: object) -> str:
    """A JSON value for a message; containers, which may be nested without end, by kind."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return one_line(repr(value), 60)

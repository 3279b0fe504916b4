"""Text reduced to letters and digits, and Python's own library as such text."""

import re
import string
import sysconfig
import unicodedata
from functools import lru_cache
from pathlib import Path

_ESCAPES = re.compile(r"\\[abfnrtv'\"\\]")
_DROPPED = bytes(set(range(128)) - set((string.ascii_letters + string.digits).encode()))
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
"""Folders of what people installed, and of the library's tests."""


def plain(text: str) -> str:
    """Letters and digits alone, so that quoting, line breaks and case hide nothing."""
    if text.isascii():
        raw = _ESCAPES.sub(" ", text).encode()
        return raw.lower().translate(None, _DROPPED).decode()
    spaced = _ESCAPES.sub(" ", unicodedata.normalize("NFKC", text))
    return "".join(filter(str.isalnum, spaced.casefold()))


@lru_cache(maxsize=1)
def standard_library() -> str:
    """Python's standard library, some ten megabytes, as plain text, one line a file.

    What stands there is nobody's secret: programs begin and end alike. Empty where an installation
    has no sources. It is read at the first call, which takes about a second.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    inside = (path.relative_to(folder) for path in sorted(folder.rglob("*.py")))
    files = [folder / path for path in inside if _LEFT_OUT.isdisjoint(path.parts)]
    return "\n".join(plain(file.read_text("utf-8", errors="replace")) for file in files)

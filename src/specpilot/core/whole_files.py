"""Text files that a reader finds whole, before and after a write that may fail in between."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specpilot.core.errors import of_system


def write_whole(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files of a folder, which is made where it does not exist.

    None takes its place before all are written, so a full disk leaves what was there before.

    Args:
        texts: content of each file by its name.

    Raises:
        SpecPilotError: the folder or a file cannot be written.
    """
    partials: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            handle, partial = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
            partials[name] = Path(partial)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            partials[name].chmod(0o644)
        for name in texts:
            partials[name].replace(folder / name)
            del partials[name]
    except OSError as error:
        raise of_system(error, where=str(folder)) from error
    finally:
        for left in partials.values():
            left.unlink()

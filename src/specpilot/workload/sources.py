"""Where rows come from: a local file, the prompts that ship with the package, or the hub."""

import gzip
import json
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

from specpilot.core.deployment import BENCHMARKS
from specpilot.core.errors import WorkloadError
from specpilot.workload.hub import fetch, read_parquet

BUILTIN = "builtin"
"""Source name of the prompts that ship with the package."""

Row = dict[str, Any]


def read_source(benchmark: str, source: str | None) -> tuple[list[Row], str]:
    """Rows of a benchmark, and the name of where they came from.

    Args:
        source: a local file, `builtin`, or None for the hub.

    Raises:
        WorkloadError: the source is missing or malformed, or the hub cannot give it.
    """
    if source == BUILTIN:
        return read_builtin(benchmark), f"builtin {benchmark}"
    if source is not None:
        path = Path(source).expanduser()
        return read_file(path), str(path)
    path, name = fetch(benchmark)
    return read_file(path), name


def read_file(path: Path) -> list[Row]:
    """Rows of a `.jsonl`, `.jsonl.gz`, `.json` (a list of objects) or `.parquet` file.

    Raises:
        WorkloadError: unreadable, of another form, or not objects.
    """
    fix = "check workload.benchmarks"
    try:
        pipe = path.exists() and not path.is_file()
    except OSError as error:
        raise WorkloadError(
            f"cannot be read ({error.strerror})", where=str(path), fix=fix
        ) from error
    if pipe or "\0" in str(path):
        raise WorkloadError("is no file", where=str(path), fix=fix)
    if path.suffix == ".parquet":
        return read_parquet(path)
    try:
        raw = path.read_bytes()
        # Some editors begin a file with a byte order mark, which nobody sees.
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise WorkloadError(f"cannot be read ({error})", where=str(path), fix=fix) from error
    if path.suffix == ".json":
        return _parse_list(text, path)
    return _parse_lines(text, str(path))


def read_builtin(benchmark: str) -> list[Row]:
    """The prompts of one benchmark's kind that ship with the package.

    Raises:
        WorkloadError: none ship under this name.
    """
    if benchmark not in BENCHMARKS:
        raise WorkloadError(
            f"no prompts ship for {benchmark!r}",
            where="workload.benchmarks",
            fix=f"use one of {', '.join(BENCHMARKS)}, or give a file",
        )
    file = resources.files("specpilot.workload") / "prompts" / f"{benchmark}.jsonl"
    return _parse_lines(file.read_text(encoding="utf-8"), f"builtin {benchmark}")


def _parse_list(text: str, path: Path) -> list[Row]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(str(path), str(error)) from error
    if not isinstance(rows, list) or any(not isinstance(row, dict) for row in rows):
        raise _not_json(str(path), "not a list of objects")
    return rows


def _parse_lines(text: str, where: str) -> list[Row]:
    rows: list[Row] = []
    # Not splitlines: texts may hold the other line separators that Unicode knows.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _not_json(f"{where}, line {number}", str(error)) from error
        if not isinstance(row, dict):
            raise _not_json(f"{where}, line {number}", "not an object")
        rows.append(row)
    return rows


def _not_json(where: str, reason: str) -> WorkloadError:
    return WorkloadError(
        f"is not JSON as expected ({reason})", where=where, fix="give one JSON object per line"
    )

"""The base of all frozen records, and their content hash.

A record refuses unknown keys and non-finite numbers, so that neither can travel between processes
or come back from the disk.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from specpilot.core.errors import SpecPilotError


class Record(BaseModel):
    """Frozen, strict about keys, without NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return self.model_dump(mode="json")


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def content_hash(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a value or record."""
    plain = value.to_json() if isinstance(value, Record) else value
    return hashlib.sha256(canonical_json(plain).encode()).hexdigest()


def read_json_object(path: Path, failure: type[SpecPilotError], fix: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        SpecPilotError: of the type `failure`, when the file is missing, unreadable, or holds
            another value.
    """
    if path.exists() and not path.is_file():
        raise failure("is no regular file", where=str(path), fix=fix)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise failure(f"cannot be read ({error})", where=str(path), fix=fix) from error
    except RecursionError as error:
        raise failure("is nested too deeply", where=str(path), fix=fix) from error
    if not isinstance(value, dict):
        raise failure("is not a JSON object", where=str(path), fix=fix)
    return value


def file_hash(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

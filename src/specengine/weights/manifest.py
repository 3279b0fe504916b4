"""`weights.json`: what an encoded folder holds, and the hashes that prove it.

Every array has the hash of its stored bytes and every tensor that of its original bytes, so that a
damaged byte is traced to an array, and a wrong encoding to a tensor. The file carries its own hash.
"""

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specengine.errors import CheckpointError
from specengine.shards import read_json

MANIFEST = "weights.json"
VERSION = 1
_FIX = "encode the checkpoint again"


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


class StoredArray(_Record):
    """One array inside a shard."""

    dtype: str
    """As safetensors spells it."""
    shape: list[int]
    begin: int = Field(ge=0)
    """Byte range inside the shard's data."""
    end: int = Field(ge=0)
    sha256: str


class StoredTensor(_Record):
    """One tensor of the checkpoint."""

    format: str = Field(pattern="^(plain|w12|w12n|w11s)$")
    dtype: str
    """Of the original, as safetensors spells it."""
    shape: list[int]
    """Of the original; formats see all but the last dimension as one."""
    sha256: str
    """Of the original's bytes."""
    shard: str
    arrays: dict[str, StoredArray]
    facts: dict[str, object]
    """Bits per weight by cause, or the reason why a tensor is plain."""

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return sum(array.end - array.begin for array in self.arrays.values())

    @property
    def matrix(self) -> tuple[int, int]:
        """The shape that formats see."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows, self.shape[-1]


class StoredShard(_Record):
    """One file."""

    bytes: int = Field(ge=8)
    header_bytes: int = Field(ge=8)
    """Everything before the data."""
    header_sha256: str


class Manifest(_Record):
    """The folder."""

    version: int
    format: str = Field(pattern="^(w12|w12n|w11s)$")
    """What was asked for; each tensor states its own."""
    source_sha256: str
    """Of the headers of the original shards."""
    shards: dict[str, StoredShard]
    tensors: dict[str, StoredTensor]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the file; readers see all of it or none."""
    body = manifest.model_dump(mode="json")
    table = {"sha256": _hash(body), **body}
    temporary = folder / (MANIFEST + ".part")
    temporary.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the file.

    Raises:
        CheckpointError: missing, damaged, or of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"holds no {MANIFEST}",
            where=str(folder),
            fix="give an encoded folder, or finish it with the same encode command",
        )
    table = read_json(path)
    if table.get("version") != VERSION:
        raise CheckpointError(
            f"has version {table.get('version')}, this release reads {VERSION}",
            where=str(path),
            fix=_FIX,
        )
    claimed = table.pop("sha256", None)
    if claimed != _hash(table):
        raise CheckpointError("does not match its own hash", where=str(path), fix=_FIX)
    try:
        return Manifest.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{field}: {first['msg']}", where=str(path), fix=_FIX) from error


def _hash(body: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

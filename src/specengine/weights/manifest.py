"""`weights.json`: what an encoded folder holds, and the hashes that prove it.

Every array has the hash of its stored bytes, every tensor that of its original bytes and every
other file (configuration, tokenizer) that of its contents, so that a damaged byte is traced to an
array or file, and a wrong encoding to a tensor. The file carries its own hash. What it says is
checked before it is used: names stay inside the folder, byte ranges inside their shard.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specengine.errors import CheckpointError
from specengine.shard_header import BITS, LARGEST_SIZE, MOST_DIMENSIONS
from specengine.shards import is_plain_name, read_json
from specengine.weights.storage import storing

MANIFEST = "weights.json"
VERSION = 2
ARRAYS = {"records": "U8", "tops": "U8", "escape_counts": "U16", "escapes": "U16"}
"""Arrays of a packed tensor and their dtypes; w11s has `LISTS`, too."""
LISTS = {"list_units": "U8"}
PADDING = {"padding": "U8"}
COSTS = ("total", "in_place", "lists", "escapes", "index", "padding")
"""Of a packed tensor, in bits per weight; the first is the sum of the others."""
Size = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Shape = Annotated[list[Size], Field(max_length=MOST_DIMENSIONS)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_FIX = "encode the checkpoint again"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StoredArray(_Record):
    """One array inside a shard."""

    dtype: str
    """As safetensors spells it."""
    shape: Shape
    begin: Size
    """Byte range inside the shard's data."""
    end: Size
    sha256: Sha256

    @model_validator(mode="after")
    def _sized(self) -> "StoredArray":
        if 8 * (self.end - self.begin) != BITS.get(self.dtype, 0) * math.prod(self.shape):
            raise ValueError(f"bytes {self.begin} to {self.end} are not what its shape needs")
        return self


class StoredTensor(_Record):
    """One tensor of the checkpoint."""

    format: str = Field(pattern="^(plain|w12|w12n|w11s)$")
    dtype: str
    """Of the original, as safetensors spells it."""
    shape: Shape
    """Of the original; formats see all but the last dimension as one."""
    sha256: Sha256
    """Of the original's bytes."""
    shard: str
    arrays: dict[str, StoredArray]
    facts: dict[str, object]
    """Bits per weight by cause, or the reason why a tensor is plain."""

    @model_validator(mode="after")
    def _complete(self) -> "StoredTensor":
        if self.format == "plain":
            wanted = {"data": self.dtype}
        else:
            wanted = ARRAYS | (LISTS if self.format == "w11s" else {})
            if self.dtype != "BF16" or len(self.shape) < 2 or 0 in self.shape:
                raise ValueError("is packed and no BF16 matrix")
        found = {name: array.dtype for name, array in self.arrays.items()}
        if found not in (wanted, wanted | PADDING):
            raise ValueError(f"does not have the arrays {', '.join(wanted)}")
        if self.format == "plain" and self.arrays["data"].shape != self.shape:
            raise ValueError("is plain and stored in another shape")
        if not _explained(self):
            raise ValueError("does not say what its size comes from")
        return self

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

    bytes: Annotated[Size, Field(ge=8)]
    header_bytes: Annotated[Size, Field(ge=8)]
    """Everything before the data."""
    header_sha256: Sha256


class StoredFile(_Record):
    """A file beside the shards, as it was beside the original ones."""

    bytes: Size
    sha256: Sha256


class Manifest(_Record):
    """The folder."""

    version: int
    format: str = Field(pattern="^(w12|w12n|w11s)$")
    """What was asked for; each tensor states its own."""
    source_sha256: Sha256
    """Of the headers of the original shards."""
    shards: dict[str, StoredShard]
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]
    """What was copied: configuration, tokenizer, licence."""

    @model_validator(mode="after")
    def _inside(self) -> "Manifest":
        for name in (*self.shards, *self.files):
            if not is_plain_name(name):
                raise ValueError(f"{name!r:.80} is no file name")
            if not name.isprintable():
                raise ValueError(f"file {name!r:.80} has a name that cannot be shown")
        for name, tensor in self.tensors.items():
            shard = self.shards.get(tensor.shard)
            if shard is None:
                raise ValueError(
                    f"tensor {name!r:.80} is in the unknown shard {tensor.shard!r:.80}"
                )
            if not name.isprintable():
                raise ValueError(f"tensor {name!r:.80} has a name that cannot be shown")
            end = max(array.end for array in tensor.arrays.values())
            if shard.header_bytes + end > shard.bytes:
                raise ValueError(f"tensor {name!r:.80} ends outside its shard")
        self._check_tiling()
        return self

    def _check_tiling(self) -> None:
        """Arrays that share bytes would each be other weights than were encoded."""
        ranges: dict[str, list[tuple[int, int, str]]] = {name: [] for name in self.shards}
        for name, tensor in self.tensors.items():
            found = ranges[tensor.shard]
            found += [(array.begin, array.end, name) for array in tensor.arrays.values()]
        for shard, found in ranges.items():
            at = 0
            for begin, end, name in sorted(found):
                if begin != at:
                    raise ValueError(f"tensor {name!r:.80} does not begin where the last one ends")
                at = end
            if self.shards[shard].header_bytes + at != self.shards[shard].bytes:
                raise ValueError(f"shard {shard!r:.80} has bytes that belong to no tensor")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the file; readers see all of it or none."""
    body = manifest.model_dump(mode="json")
    table = {"sha256": _hash(body), **body}
    temporary = folder / (MANIFEST + ".part")
    with storing(temporary):
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
    table = read_json(path, each_key_once=True)
    if table.get("version") != VERSION:
        raise CheckpointError(
            f"has version {table.get('version')!r:.40}, this release reads {VERSION}",
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
        field = ".".join(str(part) for part in first["loc"]) or "it"
        # Keys of a forged file may hold line breaks.
        field = field.encode("unicode_escape").decode()[:200]
        what = f"cannot be true ({field}: {first['msg']})"
        raise CheckpointError(what, where=str(path), fix=_FIX) from error


def _explained(tensor: StoredTensor) -> bool:
    """Whether the facts have what an inspection shows, and nothing else."""
    facts = tensor.facts
    if tensor.format == "plain":
        reason = facts.get("reason")
        return facts.keys() == {"reason"} and isinstance(reason, str) and reason.isprintable()
    escaped = facts.get("escaped")
    return (
        facts.keys() == {*COSTS, "escaped", "channels_of_zeros"}
        and all(_is_finite(facts[cost]) for cost in COSTS)
        and isinstance(escaped, dict)
        and all(cause.isidentifier() for cause in escaped)
        and all(type(count) is int for count in escaped.values())
        and type(facts.get("channels_of_zeros")) is int
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _hash(body: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

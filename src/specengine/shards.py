"""What can be said about a checkpoint folder before its tensors are read.

A truncated or missing shard is found from the files' headers alone, so that the message names the
file at fault instead of a reader's internal complaint. File format: safetensors (8-byte
little-endian header length, a JSON header with byte ranges, then the data).
"""

import json
import struct
from pathlib import Path

from specengine.errors import CheckpointError

_DOWNLOAD = "download the checkpoint again"


def check_shards(folder: Path) -> None:
    """Check that all shards of a checkpoint are there and as long as their headers say.

    Raises:
        CheckpointError: no folder, no shards, a shard is missing, truncated or unreadable.
    """
    if not folder.is_dir():
        raise CheckpointError(
            "is not a folder", where=str(folder), fix="give the path of a checkpoint folder"
        )
    for shard in _shard_files(folder):
        _check_header(shard)


def _shard_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = read_json(index).get("weight_map")
        if not isinstance(table, dict):
            raise CheckpointError("has no weight_map", where=str(index), fix=_DOWNLOAD)
        return [folder / name for name in sorted(set(table.values()))]
    single = folder / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(
            "holds no model.safetensors and no index of shards",
            where=str(folder),
            fix="convert the checkpoint to safetensors, or check the path",
        )
    return [single]


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file is missing, unreadable, or not a JSON object.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot be read ({error.strerror})", where=str(path), fix=_DOWNLOAD
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"is not valid JSON ({error})", where=str(path), fix=_DOWNLOAD
        ) from error
    if not isinstance(table, dict):
        raise CheckpointError("is not a JSON object", where=str(path), fix=_DOWNLOAD)
    return table


def _check_header(shard: Path) -> None:
    if not shard.is_file():
        raise CheckpointError("is missing", where=str(shard), fix=_DOWNLOAD)
    size = shard.stat().st_size
    with shard.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise CheckpointError(
                f"is truncated ({size} bytes end inside the header)",
                where=str(shard),
                fix=_DOWNLOAD,
            )
        text = file.read(length)
    try:
        table = json.loads(text)
        entries = {name: entry for name, entry in table.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError("has a corrupt header", where=str(shard), fix=_DOWNLOAD) from error
    if 8 + length + end != size:
        raise CheckpointError(
            f"is truncated or padded ({size} bytes, the header describes {8 + length + end})",
            where=str(shard),
            fix=_DOWNLOAD,
        )

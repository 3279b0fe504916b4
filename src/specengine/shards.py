"""What can be said about a checkpoint folder before its tensors are read.

A truncated, missing or forged shard is found from headers and the index alone, so that the message
names the file at fault instead of a reader's internal complaint.
"""

import json
import os
from pathlib import Path

from specengine.errors import CheckpointError
from specengine.shard_header import SourceTensor, read_header, without_repeats

INDEX = "model.safetensors.index.json"
_DOWNLOAD = "download the checkpoint again"


def check_shards(folder: Path) -> None:
    """Check that all shards of a checkpoint are there and as long as their headers say.

    Raises:
        CheckpointError: no folder, no shards, no tensors; a shard is missing, truncated or
            forged; the index names files outside the folder or tensors that no shard has.
    """
    shard_headers(folder)


def shard_headers(folder: Path) -> dict[Path, tuple[list[SourceTensor], bytes]]:
    """Tensors and raw header of each shard of a checkpoint, in the order of their names.

    Raises:
        CheckpointError: as `check_shards`.
    """
    if not folder.is_dir():
        raise CheckpointError(
            "is not a folder", where=str(folder), fix="give the path of a checkpoint folder"
        )
    index = folder / INDEX
    places = _weight_map(index) if is_there(index) else {}
    names = sorted(set(places.values())) if places else [_single(folder)]
    headers = {folder / name: read_header(folder / name) for name in names}
    holders: dict[str, Path] = {}
    for path, (tensors, _) in headers.items():
        for tensor in tensors:
            other = holders.setdefault(tensor.name, path)
            if other != path:
                raise CheckpointError(
                    f"holds tensor {tensor.name!r:.120}, as {other.name} does",
                    where=str(path),
                    fix=_DOWNLOAD,
                )
    for name, shard in places.items():
        if holders.get(name) != folder / shard:
            raise CheckpointError(
                f"says that {shard} holds tensor {name!r:.120}, which it does not",
                where=str(index),
                fix=_DOWNLOAD,
            )
    if not holders:
        raise CheckpointError("holds no tensors", where=str(folder), fix=_DOWNLOAD)
    return headers


def is_plain_name(name: object) -> bool:
    """Whether this names a file of the folder it is found in, and nothing outside."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and not any(mark in name for mark in ("/", "\\", "\0"))
    )


def is_there(path: Path) -> bool:
    """Whether a folder holds something of this name.

    A link to nothing counts: caches of downloads are made of links, and a lost file must not read
    as one that its authors left out.
    """
    return os.path.lexists(path)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        CheckpointError: the file is missing, unreadable, no regular file (a pipe would never end),
            or not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise CheckpointError("is no regular file", where=str(path), fix=_DOWNLOAD)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot be read ({error.strerror})", where=str(path), fix=_DOWNLOAD
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"is not UTF-8 text ({error})", where=str(path), fix=_DOWNLOAD
        ) from error


def read_json(path: Path, *, each_key_once: bool = False) -> dict[str, object]:
    """A JSON object from a file.

    Args:
        each_key_once: refuse keys that say two things; readers differ in which they take.

    Raises:
        CheckpointError: the file is missing, unreadable, or not such an object.
    """
    text = read_text(path)
    try:
        hook = without_repeats if each_key_once else None
        table = json.loads(text, object_pairs_hook=hook)
    except ValueError as error:
        raise CheckpointError(
            f"is not valid JSON ({error})", where=str(path), fix=_DOWNLOAD
        ) from error
    except RecursionError as error:
        raise CheckpointError(
            "is not valid JSON (nested too deeply)", where=str(path), fix=_DOWNLOAD
        ) from error
    if not isinstance(table, dict):
        raise CheckpointError("is not a JSON object", where=str(path), fix=_DOWNLOAD)
    return table


def _single(folder: Path) -> str:
    name = "model.safetensors"
    if not (folder / name).is_file():
        raise CheckpointError(
            f"holds no {name} and no index of shards",
            where=str(folder),
            fix="convert the checkpoint to safetensors, or check the path",
        )
    return name


def _weight_map(index: Path) -> dict[str, str]:
    """File names by tensor, all of them in the index's own folder."""
    table = read_json(index, each_key_once=True).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise CheckpointError("has no weight_map", where=str(index), fix=_DOWNLOAD)
    for tensor, name in table.items():
        if not is_plain_name(name):
            raise CheckpointError(
                f"places tensor {tensor!r:.80} in {name!r:.80}, which is no file name",
                where=str(index),
                fix=_DOWNLOAD,
            )
    return table

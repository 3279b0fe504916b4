"""Recordings on the disk: a run's `recordings/NAME.npz`, or one answer of `POST /record`.

A run's archive holds `tokens`, `ids` and `edge` of each request under its running number, and
`request_id` where it is known; `gsm8k/12` belongs to the benchmark `gsm8k`. Requests without one
form a group of their own, named after the file.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specpilot.core.errors import WorkloadError
from specpilot.costmodel.replay import check_recording
from specpilot.engines.archives import ARCHIVE_ERRORS, read_archive, to_edges
from specpilot.engines.base import Recording

FIELDS = ("tokens", "ids", "edge")
LARGEST_BYTES = 2 << 30
"""Of one file, unpacked: two hundred times what a run's ceiling records."""
_FIX = "give recordings/NAME.npz of a run folder, or an answer of /record"


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """What one file holds."""

    path: Path
    sha256: str
    recordings: tuple[Recording, ...]
    """Those with at least one drafted position."""
    groups: tuple[str, ...]
    """Benchmark, or the file's name, of each recording."""


def read_recordings(path: Path) -> RecordingFile:
    """Read and check one file.

    Raises:
        WorkloadError: unreadable, not such a file, damaged, or nothing in it to replay.
    """
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        arrays = read_archive(path, LARGEST_BYTES)
        found = [_recording(key, arrays, path) for key in _keys(arrays)]
    except (*ARCHIVE_ERRORS, TypeError) as error:
        raise WorkloadError(
            f"is not a file of recordings ({error})", where=str(path), fix=_FIX
        ) from error
    kept = [(item, group) for item, group in found if len(item.tokens) > 1]
    if not kept:
        raise WorkloadError(
            "holds no drafted position", where=str(path), fix="record longer outputs"
        )
    for item, _ in kept:
        _check_candidates(check_recording(item))
    return RecordingFile(path, digest, tuple(i for i, _ in kept), tuple(g for _, g in kept))


def _keys(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Prefixes of the requests, in their order; the empty one for a single answer."""
    if set(arrays) == set(FIELDS):
        return [""]
    numbers = {name.partition(".")[0] for name in arrays}
    return [f"{number}." for number in sorted(numbers, key=int)]


def _recording(key: str, arrays: Mapping[str, NDArray[Any]], path: Path) -> tuple[Recording, str]:
    tokens, ids, edge = (arrays[key + field] for field in FIELDS)
    kinds = tokens.dtype.kind, ids.dtype.kind, edge.dtype.kind
    if tokens.ndim != 1 or kinds[0] not in "iu" or kinds[1] not in "iu" or kinds[2] != "f":
        raise ValueError(f"arrays of {tokens.dtype}, {ids.dtype} and {edge.dtype}")
    named = arrays.get(f"{key}request_id")
    if named is not None and named.ndim:
        raise ValueError(f"request_id of shape {named.shape}")
    name = f"{path.stem}:{key[:-1]}" if named is None else str(named)
    benchmark, slash, _ = name.partition("/")
    recording = Recording(name, tokens.astype(np.int64), ids.astype(np.int64), to_edges(edge))
    return recording, benchmark if slash else path.stem


def _check_candidates(recording: Recording) -> None:
    where = f"recording {recording.request_id}"
    if 0 in recording.ids.shape:
        raise WorkloadError("has an empty lattice", where=where, fix="record the request again")
    if min(recording.tokens.min(), recording.ids.min()) < 0:
        raise WorkloadError(
            "holds ids below 0, or beyond 63 bits", where=where, fix="record the request again"
        )
    ordered = np.sort(recording.ids, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise WorkloadError(
            "names a candidate twice in one position",
            where=where,
            fix="select candidates without repetition",
        )

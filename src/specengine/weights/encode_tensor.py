"""One tensor of a checkpoint into a shard: packed where that is smaller, else as it is."""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from specengine.shard_header import SourceTensor
from specengine.weights.facts import describe_stored, stored_places
from specengine.weights.layout import BLOCK, TILE
from specengine.weights.manifest import StoredArray, StoredTensor
from specengine.weights.ordered import Workers
from specengine.weights.packed import Packed, join
from specengine.weights.registry import FORMATS, WIDEST, tiles_at_once
from specengine.weights.shard_file import ShardWriter
from specengine.weights.source import DataFile, octets_of
from specengine.weights.stored_form import to_disk, trim

_DTYPES = {torch.uint8: "U8", torch.uint16: "U16"}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch to come.

    Attributes:
        tensor, form: of which tensor, in which format.
        begin, end: its bytes in the original shard.
        original: hash of the tensor's bytes, up to the last stretch that was read.
    """

    tensor: SourceTensor
    form: str
    begin: int
    end: int
    original: Any


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch: where it is from, its records as they are stored, everything else of it, and the
    memory that records were written to."""

    piece: _Piece
    records: torch.Tensor
    packed: Packed
    room: torch.Tensor


class _Rooms:
    """Memory of stretches that are done, for those to come: memory that is new has to be taken from
    the system and cleared by it."""

    def __init__(self) -> None:
        self._free: deque[torch.Tensor] = deque()

    def take(self, size: int) -> torch.Tensor:
        """uint8 [size], with any content."""
        try:
            room = self._free.popleft()
        except IndexError:
            room = None
        if room is None or room.numel() != size:
            room = torch.empty(size, dtype=torch.uint8)
        return room

    def give(self, room: torch.Tensor) -> None:
        """Take memory back."""
        self._free.append(room)


class TensorEncoder:
    """Encodes tensors of one shard.

    Args:
        form: the format that is tried first.
        data: the original shard.
        writer: the new one.
    """

    def __init__(self, form: str, data: DataFile, writer: ShardWriter, workers: Workers) -> None:
        # A tensor that crowds the lists of w11s may still fit 12 bits.
        self._forms = (form, "w12") if form == "w11s" else (form,)
        self._data = data
        self._writer = writer
        self._workers = workers
        self._outgrown: set[str] = set()
        self._octets, self._records = _Rooms(), _Rooms()

    def encode(self, tensors: list[SourceTensor]) -> Iterator[str]:
        """Write tensors and commit them; names as they are done.

        Candidates for packing come first, so that reading is sequential where time is spent.
        """
        reasons = {tensor.name: _why_plain(tensor) for tensor in tensors}
        ordered = sorted(tensors, key=lambda tensor: (reasons[tensor.name] != "", tensor.begin))
        # One stream for all of them: the workers begin a tensor while the last one is written.
        stream = self._stream([tensor for tensor in ordered if not reasons[tensor.name]])
        for tensor in ordered:
            reason = reasons[tensor.name]
            stored = None if reason else self._packed(tensor, stream)
            if stored is None:
                reason = reason or "packing would not make it smaller"
                stored = self._copy(tensor, reason)
            self._writer.commit(tensor.name, stored)
            yield tensor.name

    def _packed(self, tensor: SourceTensor, stream: Iterator[_Part]) -> StoredTensor | None:
        """None where no format makes it smaller."""
        for form in self._forms:
            if form != self._forms[0]:
                stream = self._workers.staged(self._load, self._part, _pieces(tensor, form))
            stored = self._pack(tensor, form, stream)
            if stored is not None:
                return stored
            self._outgrown.add(tensor.name)
        return None

    def _stream(self, tensors: list[SourceTensor]) -> Iterator[_Part]:
        """Stretches of all tensors in the first format, without the rest of outgrown ones."""
        pieces = (
            piece
            for tensor in tensors
            for piece in _pieces(tensor, self._forms[0])
            if tensor.name not in self._outgrown
        )
        for part in self._workers.staged(self._load, self._part, pieces):
            if part.piece.tensor.name not in self._outgrown:
                yield part

    def _load(self, piece: _Piece) -> tuple[_Piece, torch.Tensor]:
        room = self._octets.take(piece.end - piece.begin)
        octets = self._data.read(piece.begin, piece.end, room)
        piece.original.update(octets_of(octets))
        return piece, octets

    def _part(self, loaded: tuple[_Piece, torch.Tensor]) -> _Part:
        piece, octets = loaded
        form, (_, width) = FORMATS[piece.form], _matrix(piece.tensor)
        bits = octets.view(torch.int16).view(-1, width)
        count = -(-bits.shape[0] // TILE) * -(-width // BLOCK)
        room = self._records.take(count * form.least_record)
        packed = form.encode(bits, room)
        self._octets.give(octets)
        unread = _unread(packed.records.numel())
        return _Part(piece, trim(packed), replace(packed, records=unread), room)

    def _pack(
        self, tensor: SourceTensor, form: str, stream: Iterator[_Part]
    ) -> StoredTensor | None:
        """None where the result outgrows what it should save."""
        rows, width = _matrix(tensor)
        places = stored_places(rows, width)
        most = places * 12 // 8 if form == "w11s" else tensor.nbytes
        self._writer.begin()
        parts: list[Packed] = []
        written = escaped = 0
        for part in islice(stream, len(_pieces(tensor, form))):
            self._writer.add(octets_of(part.records))
            self._records.give(part.room)
            parts.append(part.packed)
            written += part.records.numel()
            escaped += part.packed.escapes.nbytes // 2
            if written + escaped > most:
                return None
        whole = join(parts, _unread(sum(part.records.numel() for part in parts)))
        arrays = {"records": self._writer.end_array("U8", [written])}
        for name, array in to_disk(whole).items():
            self._writer.add(octets_of(array))
            arrays[name] = self._writer.end_array(_DTYPES[array.dtype], [*array.shape])
        return StoredTensor(
            format=form,
            dtype=tensor.dtype,
            shape=[*tensor.shape],
            sha256=part.piece.original.hexdigest(),
            shard=self._writer.path.name,
            arrays=arrays,
            facts=describe_stored(whole, arrays).to_json(),
        )

    def _copy(self, tensor: SourceTensor, reason: str) -> StoredTensor:
        self._writer.begin()
        for piece in self._data.pieces(tensor.begin, tensor.end):
            self._writer.add(octets_of(piece))
        array: StoredArray = self._writer.end_array(tensor.dtype, [*tensor.shape])
        return StoredTensor(
            format="plain",
            dtype=tensor.dtype,
            shape=[*tensor.shape],
            sha256=array.sha256,
            shard=self._writer.path.name,
            arrays={"data": array},
            facts={"reason": reason},
        )


def _pieces(tensor: SourceTensor, form: str) -> list[_Piece]:
    _, width = _matrix(tensor)
    step = TILE * tiles_at_once(width) * width * 2
    begins, original = range(tensor.begin, tensor.end, step), hashlib.sha256()
    return [_Piece(tensor, form, at, min(tensor.end, at + step), original) for at in begins]


def _unread(size: int) -> torch.Tensor:
    """Stands in for records that went to disk; only their size is of use."""
    return torch.empty(size, dtype=torch.uint8, device="meta")


def _matrix(tensor: SourceTensor) -> tuple[int, int]:
    rows = 1
    for size in tensor.shape[:-1]:
        rows *= size
    return rows, tensor.shape[-1]


def _why_plain(tensor: SourceTensor) -> str:
    """Why a tensor cannot be packed, or nothing."""
    if tensor.dtype != "BF16":
        return f"it is {tensor.dtype}, not BF16"
    if len(tensor.shape) < 2 or tensor.nbytes == 0:
        return "it is no matrix"
    rows, width = _matrix(tensor)
    if width > WIDEST:
        return f"its rows are longer than {WIDEST}"
    if stored_places(rows, width) * 11 >= rows * width * 16:
        return "padding to whole records would outweigh the gain"
    return ""

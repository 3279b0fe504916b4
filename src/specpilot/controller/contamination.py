"""Whether a commit carries requests or their answers: as text, as token ids, or plainly encoded.

Compared are letters and digits alone, so that quoting, line breaks and case hide nothing, and runs
of integers, however they are written. What Python's standard library says too, such as how a
program reads its arguments, is no copy. A table behind an encoding that is not tried here passes;
the sealed final on prompts that nobody has is what stops it.
"""

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from specpilot.controller.plain_text import plain, standard_library
from specpilot.controller.trees import ForbiddenPath

TEXT_LENGTH = 48
"""Letters and digits in a row that a commit may not share with a request; ones with little variety,
such as rows of zeros, dividers and number tables, are nobody's secret."""
SHORTEST_TEXT = 20
"""A request of fewer may be a common phrase; one of more may not be repeated whole."""
TOKEN_LENGTH = 12
"""Token ids in a row that a commit may not share with a request, six of them different."""
_TEXT_STEP, _TOKEN_STEP = 17, 5
_TEXT_WINDOW = TEXT_LENGTH - _TEXT_STEP + 1
_TOKEN_WINDOW = TOKEN_LENGTH - _TOKEN_STEP + 1
"""A window at every step: a common run of the length above holds a whole one."""
_DIFFERENT = 6
_DIFFERENT_SIGNS, _DIFFERENT_SIGNS_WHOLE = 12, 11
"""More than there are digits: counting up is no copy. Prose has 13 to 17 in a window."""
_LARGEST_DECODED = 1 << 20
_NUMBERS = re.compile(r"0[xX][0-9a-fA-F]{1,8}|[0-9]{1,9}")
_SEAMS = re.compile(rb"""['"]\s*\\?\s*\+?\s*[bruBRU]*['"]""")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{48,}={0,2}")
Run = TypeVar("Run", str, tuple[int, ...])
_ARRAYS = ("<u2", "<i4", "<i8", ">u2", ">i4")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as text and ids, or one answer."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Windows of requests and answers."""

    texts: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    """Texts that are shorter than a window."""
    ids: frozenset[tuple[int, ...]] = frozenset()

    def found_in(self, content: bytes) -> str | None:
        """What the content repeats, in a few words; None where it repeats nothing."""
        for view in _views(content):
            text = view.decode(errors="replace")
            if any(hit not in standard_library() for hit in self._shared_texts(plain(text))):
                return "the text of a request or an answer"
            if self.ids and any(self._repeats_ids(run) for run in _runs(text, view)):
                return "the token ids of a request or an answer"
        return None

    def _shared_texts(self, text: str) -> Iterator[str]:
        yield from (short for short in self.whole if short in text)
        windows = (text[i : i + _TEXT_WINDOW] for i in range(len(text) - _TEXT_WINDOW + 1))
        if self.texts:
            yield from (window for window in windows if window in self.texts)

    def _repeats_ids(self, run: Sequence[int]) -> bool:
        width = _TOKEN_WINDOW
        return any(tuple(run[i : i + width]) in self.ids for i in range(len(run) - width + 1))


NOTHING_KNOWN = Fingerprints()


def fingerprints(groups: Iterable[Sequence[Exchange]], stock: Iterable[bytes]) -> Fingerprints:
    """Fingerprints of exchanges, without what is no secret.

    Args:
        groups: exchanges of one kind, whose common beginning and end is a template's.
        stock: contents of files that somebody starts from; what they hold may stay.
    """
    texts: set[str] = set()
    whole: set[str] = set()
    ids: set[tuple[int, ...]] = set()
    for group in groups:
        for text in _without_frame([plain(item.text) for item in group]):
            texts |= _windows(text, _TEXT_WINDOW, _TEXT_STEP)
            if SHORTEST_TEXT <= len(text) < _TEXT_WINDOW:
                whole.add(text)
        for run in _without_frame([item.ids for item in group]):
            ids |= _windows(run, _TOKEN_WINDOW, _TOKEN_STEP)
    texts = {window for window in texts if len(set(window)) >= _DIFFERENT_SIGNS}
    whole = {short for short in whole if len(set(short)) >= _DIFFERENT_SIGNS_WHOLE}
    ids = {window for window in ids if len(set(window)) >= _DIFFERENT}
    for content in stock:
        held = plain(content.decode(errors="replace"))
        texts -= {held[i : i + _TEXT_WINDOW] for i in range(len(held))}
        whole -= {short for short in whole if short in held}
    return Fingerprints(frozenset(texts), frozenset(whole), frozenset(ids))


def check_content(path: str, content: bytes, known: Fingerprints) -> None:
    """Refuse what is no text, and what repeats requests.

    Raises:
        ForbiddenPath: in one line that quotes neither.
    """
    fix = "write source that computes; answers are measured on requests it cannot know"
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ForbiddenPath("is not UTF-8 text", where=path, fix=fix) from error
    if "\0" in text:
        raise ForbiddenPath("holds null bytes", where=path, fix=fix)
    if (what := known.found_in(content)) is not None:
        raise ForbiddenPath(f"repeats {what}", where=path, fix=fix)


def _without_frame(items: Sequence[Run]) -> list[Run]:
    """Sequences without what all of them begin and end with; a single one has no frame."""
    if len(items) < 2:
        return list(items)
    rest = [item[_shared(items) :] for item in items]
    end = _shared([item[::-1] for item in rest])
    return [item[: len(item) - end] for item in rest]


def _shared(items: Sequence[Run]) -> int:
    """Length of the common beginning: that of the first and the last in order."""
    first, last = min(items), max(items)
    pairs = enumerate(zip(first, last, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(last)))


def _windows(run: Run, width: int, step: int) -> set[Run]:
    return {run[i : i + width] for i in range(0, len(run) - width + 1, step)}


def _views(content: bytes) -> Iterator[bytes]:
    """The content, and what its long literals decode to."""
    yield content
    for literal in _ENCODED.findall(_SEAMS.sub(b"", content)):
        for decoded in _decoded(literal[: 2 * _LARGEST_DECODED]):
            yield decoded
            with_limit = zlib.decompressobj(wbits=47)  # zlib or gzip
            try:
                yield with_limit.decompress(decoded, _LARGEST_DECODED)
            except zlib.error:
                continue


def _decoded(literal: bytes) -> Iterator[bytes]:
    padded = literal.rstrip(b"=") + b"=" * (-len(literal.rstrip(b"=")) % 4)
    for decode in (binascii.unhexlify, base64.b64decode, base64.urlsafe_b64decode):
        try:
            yield decode(literal if decode is binascii.unhexlify else padded)
        except ValueError:
            continue


def _runs(text: str, view: bytes) -> Iterator[Sequence[int]]:
    """Integers written out, and those that bytes hold as an array."""
    yield [int(number, 0) if number[:2] in ("0x", "0X") else int(number)
           for number in _NUMBERS.findall(text)]  # fmt: skip
    if text.isascii():
        return
    for kind in _ARRAYS:
        width = np.dtype(kind).itemsize
        for start in range(width):
            whole = (len(view) - start) // width * width
            yield np.frombuffer(view[start : start + whole], kind).tolist()

"""The bit fields of a layout as few operations on many words.

They work in one memory that holds rows of registers and, behind them, rows of words. A word that
keeps a register in place has no row of its own: it is made in the register's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from specengine.weights.layout import REGISTERS, Layout, Piece


@dataclass(frozen=True, slots=True)
class Run:
    """Pieces with one mask and shift, whose rows are evenly spaced.

    Attributes:
        sources, targets: rows of registers and words, or of words and registers.
        count: how many.
        shift: to the left where positive, to the right where negative.
        mask: of what is kept after shifting, as int32.
        fresh: whether the targets hold nothing else yet.
    """

    sources: slice
    targets: slice
    count: int
    shift: int
    mask: int
    fresh: bool


@cache
def rows_of_words(layout: Layout) -> tuple[int, ...]:
    """Where each word lies: a register's row, if it takes all of that register and does not move
    it, else a row behind the registers."""
    alone = [piece.register for piece in layout.pieces]
    homes = {
        piece.word: piece.register
        for piece in layout.pieces
        if piece.shift == 0 and alone.count(piece.register) == 1
    }
    return tuple(homes.get(word, REGISTERS + word) for word in range(layout.words))


@cache
def placing(layout: Layout) -> tuple[Run, ...]:
    """From registers to words."""
    rows = rows_of_words(layout)
    return _runs(
        layout,
        lambda piece: (piece.register, rows[piece.word], piece.shift, _shifted(piece)),
        # What is put between the bits of a word must find its other bits cleared.
        lambda source, target: source != target,
    )


@cache
def extracting(layout: Layout) -> tuple[Run, ...]:
    """From words to registers."""
    rows = rows_of_words(layout)
    return _runs(
        layout,
        lambda piece: (rows[piece.word], piece.register, -piece.shift, piece.mask),
        # Clearing a word comes after all that is read from it.
        lambda source, target: source == target,
    )


def apply(runs: tuple[Run, ...], space: Any, rows: Any, field: Any) -> None:
    """Fill the targets among rows int32 [n, ...] from the sources among them.

    Args:
        space: numpy or torch, whichever the arrays are of.
        field: scratch, as large as all registers.
    """
    for run in runs:
        source, target = rows[run.sources], rows[run.targets]
        out = target if run.fresh else field[: run.count]
        # Masking comes last, so that copies of the sign bit fall away.
        if run.shift > 0:
            space.bitwise_left_shift(source, run.shift, out=out)
            source = out
        elif run.shift < 0:
            space.bitwise_right_shift(source, -run.shift, out=out)
            source = out
        space.bitwise_and(source, run.mask, out=out)
        if not run.fresh:
            space.bitwise_or(target, out, out=target)


def _runs(
    layout: Layout,
    read: Callable[[Piece], tuple[int, int, int, int]],
    later: Callable[[int, int], bool],
) -> tuple[Run, ...]:
    fields: dict[tuple[bool, int, int], list[tuple[int, int]]] = {}
    for piece in layout.pieces:
        source, target, shift, mask = read(piece)
        key = (later(source, target), shift, mask)
        fields.setdefault(key, []).append((source, target))
    runs: list[Run] = []
    filled: set[int] = set()
    # Fields that stay in their lanes' bits are most: they go first and find their targets empty.
    ordered = sorted(fields.items(), key=lambda item: (item[0][0], abs(item[0][1])))
    for (_, shift, mask), pairs in ordered:
        for line in _lines(pairs, filled):
            sources, targets = (_slice([pair[side] for pair in line]) for side in (0, 1))
            fresh = line[0][1] not in filled
            runs.append(Run(sources, targets, len(line), shift, _signed(mask), fresh))
            filled.update(target for _, target in line)
    return tuple(runs)


def _lines(pairs: list[tuple[int, int]], filled: set[int]) -> list[list[tuple[int, int]]]:
    """Cut pairs into evenly spaced lines whose targets are all filled or all empty."""
    lines: list[list[tuple[int, int]]] = []
    for pair in pairs:
        line = lines[-1] if lines else []
        if line and (pair[1] in filled) == (line[0][1] in filled) and _even([*line, pair]):
            line.append(pair)
        else:
            lines.append([pair])
    return lines


def _even(line: list[tuple[int, int]]) -> bool:
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(line)}
    return len(steps) == 1 and all(step > 0 for step in steps.pop())


def _slice(values: list[int]) -> slice:
    step = values[1] - values[0] if len(values) > 1 else 1
    return slice(values[0], values[-1] + 1, step)


def _shifted(piece: Piece) -> int:
    if piece.shift > 0:
        return piece.mask << piece.shift & 0xFFFFFFFF
    return piece.mask >> -piece.shift


def _signed(mask: int) -> int:
    """A 32-bit mask as the int32 of the same bits."""
    return mask - (1 << 32) if mask >= 1 << 31 else mask

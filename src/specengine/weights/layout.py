"""Where each bit of a coded weight lies inside a record (paper section 4.1, Figure 5).

A record covers 128 output channels x 64 inputs of a matrix [N, K] and is made for tensor cores: it
is cut into two halves of 64 channels; 128 threads share a half; each thread owns 16 registers of
32 bits, which are the A operand of four 64 x n x 16 matrix products; a register holds two
neighbouring inputs of one channel as 16-bit lanes (low lane first). `fragments.py` states the
order.

A layout says into which of a thread's words each bit field of its registers goes. A thread reads
its words by 16-byte loads: they are stored as planes of four words [128 threads][16 bytes], then of
two words, then of one. Fields stay in their lanes, so decoding is masks and shifts alone:

* F (`w12`): 12 bits; three words keep three registers in place, the fourth is cut into their gaps.
* N (`w12n`): 12 bits; the 8-bit view of all weights comes first, their low mantissa bits after it.
* X (`w11s`): 11 bits; the top bit of the exponent offset is left out and listed where it is 0.
* E8, E7, E6: low-bit floats with a 2-bit exponent and 5, 4 or 3 mantissa bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

TILE = 128
"""Channels of a record."""
BLOCK = 64
"""Inputs of a record."""
REGISTERS = 16
"""Registers of a thread in each half of a record."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One bit field: `word |= (register & mask) << shift`; a negative shift goes right."""

    register: int
    word: int
    shift: int
    mask: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The words of a thread for one half record; compared by identity, so that caches find it fast.

    Attributes:
        words: 32-bit words per thread.
        pieces: all bit fields; their targets are disjoint.
        sections: (first word, words) of the parts of a record; each holds both halves.
    """

    words: int
    pieces: tuple[Piece, ...]
    sections: tuple[tuple[int, int], ...]

    @property
    def record_bytes(self) -> int:
        """Bytes of a record; half of them in each half."""
        return 2 * 128 * 4 * self.words


def planes(first: int, words: int) -> Iterator[tuple[int, int]]:
    """(first word, words) of the planes of a section: fours, then a two, then a one."""
    while words:
        width = 4 if words >= 4 else 2 if words >= 2 else 1
        yield first, width
        first, words = first + width, words - width


def _both(mask: int) -> int:
    """A mask of one lane, on both lanes."""
    return mask | mask << 16


def _unnested() -> Layout:
    pieces = []
    for step in range(4):
        first, word = 4 * step, 3 * step
        pieces += [Piece(first + i, word + i, 0, _both(0x87FF)) for i in range(3)]
        pieces += [
            Piece(first + 3, word, 4, _both(0x0780)),
            Piece(first + 3, word + 1, 8, _both(0x0078)),
            Piece(first + 3, word + 2, 11, _both(0x0007)),
            Piece(first + 3, word + 2, -1, _both(0x8000)),
        ]
    return Layout(12, tuple(pieces), ((0, 12),))


def _nested() -> Layout:
    pieces = []
    for pair in range(8):
        a, b = 2 * pair, 2 * pair + 1
        low, at = 8 + pair // 2, 8 * (pair % 2)
        pieces += [
            Piece(a, pair, 0, _both(0x87F0)),
            # A rotation by 4: the high lane's sign comes around to bit 3 of the low lane.
            Piece(b, pair, 4, 0x07808780),
            Piece(b, pair, -28, 0x80000000),
            Piece(b, pair, -4, _both(0x0070)),
            Piece(a, low, at, _both(0x000F)),
            Piece(b, low, at + 4, _both(0x000F)),
        ]
    return Layout(12, tuple(pieces), ((0, 8), (8, 4)))


def _sparse_top() -> Layout:
    pieces = [Piece(i, i, 0, _both(0x83FF)) for i in range(11)]
    for j in range(5):
        pieces += [
            Piece(11 + j, 2 * j, 5, _both(0x03E0)),
            Piece(11 + j, 2 * j + 1, 10, _both(0x001F)),
            Piece(11 + j, 10, j - 5, _both(0x8000)),
        ]
    return Layout(11, tuple(pieces), ((0, 11),))


def _eight_bits() -> Layout:
    pieces = []
    for i in range(8):
        pieces += [
            Piece(i, i, 0, _both(0x81FC)),
            Piece(8 + i, i, 6, _both(0x01F8)),
            Piece(8 + i, i, -1, _both(0x0004)),
            Piece(8 + i, i, -15, _both(0x8000)),
        ]
    return Layout(8, tuple(pieces), ((0, 8),))


def _seven_bits() -> Layout:
    pieces = []
    for i in range(7):
        pieces += [
            Piece(i, i, 0, _both(0x81F8)),
            Piece(7 + i, i, 6, _both(0x01F8)),
            Piece(7 + i, i, -15, _both(0x8000)),
        ]
    for register, word, sign_shift in ((14, 0, -14), (15, 4, -13)):
        pieces += [
            Piece(register, word, -6, _both(0x0180)),
            Piece(register, word + 1, -4, _both(0x0060)),
            Piece(register, word + 2, -2, _both(0x0018)),
            Piece(register, 3, sign_shift, _both(0x8000)),
        ]
    return Layout(7, tuple(pieces), ((0, 7),))


def _six_bits() -> Layout:
    pieces = []
    for i in range(6):
        pieces += [
            Piece(i, i, 0, _both(0x81F0)),
            Piece(6 + i, i, 5, _both(0x01F0)),
            Piece(6 + i, i, -1, _both(0x8000)),
        ]
    for word, a in ((0, 12), (3, 14)):
        pieces += [
            Piece(a, word, -5, _both(0x01E0)),
            Piece(a + 1, word + 1, -5, _both(0x01E0)),
            Piece(a, word + 2, -1, _both(0x0010)),
            Piece(a + 1, word + 2, -2, _both(0x0010)),
            Piece(a, word + 2, -14, _both(0x8000)),
            Piece(a + 1, word + 2, -15, _both(0x8000)),
        ]
    return Layout(6, tuple(pieces), ((0, 6),))


F = _unnested()
N = _nested()
X = _sparse_top()
E8 = _eight_bits()
E7 = _seven_bits()
E6 = _six_bits()

"""The cheapest windows on a CPU, by a few comparisons per weight instead of a count of exponents.

The best top is at a channel's largest exponent or a little below it, because weights above the
window cost most. So tops are tried from there downwards, until those that remain above would cost
more than the best so far. Same results as `window.cheapest_of_all`.

Exponent fields are compared instead of patterns: they are half as many bytes.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specengine.weights.native import scratch

LEVELS = 8
"""Tops that are tried below a channel's largest exponent; channels that need more are left open."""
_DISTANCES = 32
"""Exponents below the largest that are told apart meanwhile; more than `LEVELS + 16`."""

_FIRST_PART = 8
"""One in so many inputs tells most channels that need no exact count."""

Octets = NDArray[np.uint8]
Shorts = NDArray[np.int16]
Longs = NDArray[np.int64]


class WindowSearch:
    """Tops of channels [C, K].

    Args:
        bits: int16 [C, K], BF16 patterns.
        lowest, highest: the least and the largest top.
        escape_bits: cost of a weight outside the window.
        listed_bits: cost of a weight in the window's lower half.

    Attributes:
        most: uint8 [C], largest exponent fields.
        tops: int16 [C], the best tops; 0 for channels of zeros.
        open: int64 [n], channels whose best top was not reached.
    """

    def __init__(
        self, bits: Shorts, lowest: int, highest: int, escape_bits: int, listed_bits: int
    ) -> None:
        exponents = exponent_fields(bits)
        self.most: Octets = exponents.max(1)
        self._exponents = exponents
        self._lowest = lowest
        self._start = np.clip(self.most, lowest, highest).astype(np.int16)
        self._escape_bits = escape_bits
        self._depth = 7 if listed_bits else 15
        zeros = np.flatnonzero(self.most == 0)
        zeros = zeros[~(bits[zeros] & 0x7FFF).any(1)]
        bounds = (self._start - self._depth).astype(np.uint8)
        bounds[zeros] = 0
        flags = scratch("flags", bits.shape, np.bool_)
        self._low: Longs = places_of(np.less(exponents, bounds[:, None], out=flags))
        ends = np.arange(self.most.size + 1) * bits.shape[1]
        self._each: Longs = np.diff(np.searchsorted(self._low, ends))
        """[C]: how many of `_low` are in each channel."""
        self._value: Octets = exponents.reshape(-1).take(self._low)
        self.tops, self.open = self._descend(self._below(listed_bits))
        self.tops[zeros] = 0

    def places(self, tops: Shorts) -> tuple[Longs, Longs]:
        """Sorted places in the windows' lower halves, if these have a cost, and outside windows.

        Args:
            tops: as found, those of open channels filled in.
        """
        width = self._exponents.shape[1]
        tops_of_low = np.repeat(tops, self._each)
        below = self._value < tops_of_low - 15
        lower = self._value < tops_of_low - self._depth
        outside = self._low[below]
        rows = np.flatnonzero(self.most > tops)
        if rows.size:
            found = places_of(self._exponents[rows] > tops[rows, None].astype(np.uint8))
            above = rows[found // width] * width + found % width
            outside = np.sort(np.concatenate((outside, above)))
        return self._low[lower & ~below], outside

    def _below(self, listed_bits: int) -> Longs:
        """[C, LEVELS + 1]: the cost of weights below the middle and the bottom of each window."""
        distance = np.repeat(self._start, self._each)
        distance -= self._value
        np.minimum(distance, _DISTANCES - 1, out=distance)
        keys = np.repeat(np.arange(self._start.size) * _DISTANCES, self._each)
        keys += distance
        counts = np.bincount(keys, minlength=_DISTANCES * self._start.size)
        counts = counts.reshape(-1, _DISTANCES)
        beyond: Longs = counts[:, ::-1].cumsum(1)[:, ::-1]
        cost = (self._escape_bits - listed_bits) * beyond[:, 16 : 17 + LEVELS]
        return cost + listed_bits * beyond[:, 8 : 9 + LEVELS]

    def _descend(self, below: Longs) -> tuple[Shorts, Longs]:
        tops = self._start.copy()
        above = np.ones(tops.size, dtype=np.int64)
        least = below[:, 0].copy()
        capped = np.flatnonzero(self.most > tops)
        if capped.size:
            above[capped] = self._count_above(capped, tops[capped])
            least[capped] += self._escape_bits * above[capped]
        rows = np.arange(tops.size)
        for level in range(1, LEVELS + 1):
            # A lower top costs at least what is above the window now; ties go to the lower one.
            worth = (least[rows] >= self._escape_bits * above) & (
                self._start[rows] >= self._lowest + level
            )
            rows = rows[worth]
            # Most channels of which too many weights would be above show it in their first part.
            candidate = self._start[rows] - np.int16(level)
            few = self._count_above(rows, candidate, self._exponents.shape[1] // _FIRST_PART)
            rows = rows[least[rows] >= self._escape_bits * few]
            if not rows.size:
                return tops, rows
            candidate = self._start[rows] - np.int16(level)
            above = self._count_above(rows, candidate)
            cost = self._escape_bits * above + below[rows, level]
            better = cost <= least[rows]
            tops[rows[better]] = candidate[better]
            least[rows] = np.minimum(cost, least[rows])
        return tops, rows[least[rows] >= self._escape_bits * above]

    def _count_above(self, rows: Longs, tops: Shorts, width: int | None = None) -> Longs:
        """Weights of some rows whose exponent field is larger than `tops`.

        Args:
            width: of how many inputs; all where it is left out.
        """
        taken = self._exponents[:, :width]
        if rows.size < taken.shape[0]:
            room = scratch("chosen", (rows.size, taken.shape[1]), np.uint8)
            taken = taken.take(rows, axis=0, out=room, mode="clip")
        flags = scratch("flags", taken.shape, np.bool_)
        return counts_of_rows(np.greater(taken, tops[:, None].astype(np.uint8), out=flags))


def exponent_fields(bits: Shorts) -> Octets:
    """Of BF16 patterns, uint8, of the same shape."""
    fields = scratch("exponents", bits.shape, np.uint8)
    # The sign is the ninth bit of what is shifted: the narrower type drops it.
    np.right_shift(bits.view(np.uint16), 7, out=fields, casting="unsafe")
    return fields


def places_of(flags: NDArray[np.bool_]) -> Longs:
    """Sorted places of the flags that are set in the flattened [C, K], int64 [n].

    The same as `np.flatnonzero`, which is slow where one in fifty is set.
    """
    if flags.size % 8:
        return np.flatnonzero(flags)
    words = flags.reshape(-1).view(np.uint64)
    touched = np.flatnonzero(words != 0)
    found = np.flatnonzero(words[touched].view(np.bool_))
    places: Longs = (touched[found >> 3] << 3) + (found & 7)
    return places


def counts_of_rows(flags: NDArray[np.bool_]) -> Longs:
    """How many flags of [C, K] are set in each row, int64 [C]."""
    counted: NDArray[Any] = flags
    if flags.shape[1] % 8 == 0:
        # Eight counters in each word; a byte overflows after 255 words.
        words = flags.view(np.uint64)
        sums = np.add.reduceat(words, np.arange(0, words.shape[1], 255), axis=1)
        counted = sums.view(np.uint8)
    counts: Longs = counted.sum(1, dtype=np.int64)
    return counts

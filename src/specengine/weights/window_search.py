"""The cheapest windows on a CPU, by a few comparisons per weight instead of a count of exponents.

The best top is at a channel's largest exponent or a little below it, because weights above the
window cost most. So tops are tried from there downwards, until those that remain above would cost
more than the best so far. Same results as `window.cheapest_of_all`.
"""

import numpy as np
from numpy.typing import NDArray

LEVELS = 8
"""Tops that are tried below a channel's largest exponent; channels that need more are left open."""
_DISTANCES = 32
"""Exponents below the largest that are told apart meanwhile; more than `LEVELS + 16`."""

Shorts = NDArray[np.int16]
Longs = NDArray[np.int64]


class WindowSearch:
    """Tops of channels [C, K].

    Args:
        magnitude: int16 [C, K], BF16 patterns without signs.
        lowest, highest: the least and the largest top.
        escape_bits: cost of a weight outside the window.
        listed_bits: cost of a weight in the window's lower half.

    Attributes:
        most: int16 [C], largest magnitudes.
        tops: int16 [C], the best tops; 0 for channels of zeros.
        open: int64 [n], channels whose best top was not reached.
    """

    def __init__(
        self, magnitude: Shorts, lowest: int, highest: int, escape_bits: int, listed_bits: int
    ) -> None:
        self.most: Shorts = magnitude.max(1)
        self._magnitude = magnitude
        self._lowest = lowest
        self._start = np.clip(self.most >> 7, lowest, highest)
        self._escape_bits = escape_bits
        self._depth = 7 if listed_bits else 15
        bounds = (self._start - self._depth) << 7
        bounds[self.most == 0] = 0
        self._low: Longs = np.flatnonzero(magnitude < bounds[:, None])
        self._channel = self._low // magnitude.shape[1]
        self._value = magnitude.reshape(-1)[self._low]
        self.tops, self.open = self._descend(self._below(listed_bits))
        self.tops[self.most == 0] = 0

    def places(self, tops: Shorts) -> tuple[Longs, Longs]:
        """Sorted places in the windows' lower halves, if these have a cost, and outside windows.

        Args:
            tops: as found, those of open channels filled in.
        """
        width = self._magnitude.shape[1]
        below = self._value < ((tops - 15) << 7)[self._channel]
        lower = self._value < ((tops - self._depth) << 7)[self._channel]
        outside = self._low[below]
        bounds = (tops + 1) << 7
        rows = np.flatnonzero(self.most >= bounds)
        if rows.size:
            found = np.flatnonzero(self._magnitude[rows] >= bounds[rows, None])
            above = rows[found // width] * width + found % width
            outside = np.sort(np.concatenate((outside, above)))
        return self._low[lower & ~below], outside

    def _below(self, listed_bits: int) -> Longs:
        """[C, LEVELS + 1]: the cost of weights below the middle and the bottom of each window."""
        distance = np.minimum(self._start[self._channel] - (self._value >> 7), _DISTANCES - 1)
        counts = np.bincount(
            self._channel * _DISTANCES + distance, minlength=_DISTANCES * self._start.size
        ).reshape(-1, _DISTANCES)
        beyond: Longs = counts[:, ::-1].cumsum(1)[:, ::-1]
        cost = (self._escape_bits - listed_bits) * beyond[:, 16 : 17 + LEVELS]
        return cost + listed_bits * beyond[:, 8 : 9 + LEVELS]

    def _descend(self, below: Longs) -> tuple[Shorts, Longs]:
        tops = self._start.copy()
        above = np.ones(tops.size, dtype=np.int64)
        least = below[:, 0].copy()
        capped = np.flatnonzero(self.most >> 7 > tops)
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
            if not rows.size:
                return tops, rows
            candidate = self._start[rows] - np.int16(level)
            above = self._count_above(rows, candidate)
            cost = self._escape_bits * above + below[rows, level]
            better = cost <= least[rows]
            tops[rows[better]] = candidate[better]
            least[rows] = np.minimum(cost, least[rows])
        return tops, rows[least[rows] >= self._escape_bits * above]

    def _count_above(self, rows: Longs, tops: Shorts) -> Longs:
        """Weights of some rows whose exponent field is larger than `tops`."""
        taken = self._magnitude
        if rows.size < taken.shape[0]:
            taken = taken[rows]
        flags = taken >= ((tops + 1) << 7)[:, None]
        sums: Longs = np.add.reduce(flags.view(np.uint8), axis=1, dtype=np.uint32).astype(np.int64)
        return sums

"""A limit of time that counts while this process runs: a pause of it is nobody's slowness."""

import threading
from time import monotonic

SLICE = 1.0
"""Seconds that one look at the clock counts at most; who waits looks at least as often."""


class OwnTime:
    """Seconds that are left of an allowance. Any thread may ask."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._looked = monotonic()
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds; 0 when there are none."""
        with self._lock:
            now = monotonic()
            self._left = max(self._left - min(now - self._looked, SLICE), 0.0)
            self._looked = now
            return self._left

    @property
    def next_look(self) -> float:
        """Seconds after which a waiter asks again."""
        return min(self.left, SLICE)

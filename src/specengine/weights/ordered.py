"""Work on pieces in parallel, results in order, few pieces in memory."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


class Workers:
    """Threads that torch's operations run on side by side; use as a context manager."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __enter__(self) -> "Workers":
        self._pool = ThreadPoolExecutor(self.threads)
        self._hashing = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._hashing.shutdown(cancel_futures=True)

    def digest(self) -> "Digest":
        """A hash that is computed on one more thread."""
        return Digest(self._hashing)

    def map(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """Results in the order of the pieces; at most `2 * threads + 1` pieces are held."""
        pending: deque[Future[Result]] = deque()
        try:
            for piece in pieces:
                pending.append(self._pool.submit(work, piece))
                if len(pending) > 2 * self.threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


class Digest:
    """SHA-256 beside other work; at most two pieces are held."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._digest = hashlib.sha256()
        self._last: Future[None] | None = None

    def update(self, octets: memoryview) -> None:
        """Add bytes, which must stay as they are until the next call."""
        self._finish()
        self._last = self._pool.submit(self._digest.update, octets)

    def hexdigest(self) -> str:
        """Of all that was added."""
        self._finish()
        return self._digest.hexdigest()

    def _finish(self) -> None:
        if self._last is not None:
            self._last.result()

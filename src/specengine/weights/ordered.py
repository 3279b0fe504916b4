"""Work on pieces in parallel, results in order, few pieces in memory."""

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
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """Results in the order of the pieces; at most `threads + 1` pieces are held."""
        pending: deque[Future[Result]] = deque()
        try:
            for piece in pieces:
                pending.append(self._pool.submit(work, piece))
                if len(pending) > self.threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

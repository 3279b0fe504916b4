"""Work on pieces in parallel, results in order, few pieces in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from specengine.errors import OptionError

Piece = TypeVar("Piece")
Loaded = TypeVar("Loaded")
Result = TypeVar("Result")


class Workers:
    """Threads that torch's operations run on side by side; use as a context manager.

    Raises:
        OptionError: fewer than one.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise OptionError(f"{threads} cannot work", where="threads", fix="ask for 1 or more")
        self.threads = threads

    def __enter__(self) -> "Workers":
        self._pool = ThreadPoolExecutor(self.threads)
        self._loading = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *failure: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._loading.shutdown(cancel_futures=True)

    def map(self, work: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        """Results in the order of the pieces; at most `2 * threads + 2` pieces are held."""
        pending: deque[Future[Result]] = deque()
        try:
            for piece in pieces:
                pending.append(self._pool.submit(work, piece))
                if len(pending) > 2 * self.threads + 1:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def staged(
        self,
        load: Callable[[Piece], Loaded],
        work: Callable[[Loaded], Result],
        pieces: Iterable[Piece],
    ) -> Iterator[Result]:
        """The same where one more thread loads the pieces, in their order, ahead of the work."""

        def finish(loaded: Future[Loaded]) -> Result:
            return work(loaded.result())

        return self.map(finish, (self._loading.submit(load, piece) for piece in pieces))

"""Where thread blocks of one launch meet: words that hold EMPTY between launches.

Launches that share a workspace must not overlap in time, so each stream has its own. Graphs
captured on one stream share that stream's workspace: replay them one after the other.
"""

import functools
import threading

import torch

from specengine.kernels.errors import KernelError

EMPTY = -1  # as int32: the bit pattern that means "not arrived"
STREAMS = 8
WORDS = 132 * 128 * 64
"""Words of a stream: every multiprocessor of a Hopper GPU hands over a tile of 128 x 64."""


class Workspaces:
    """Workspaces of one device, handed out to streams in the order of their first use.

    All are allocated together, because a stream may come up first while a graph is captured, where
    filling them would become a part of the graph.
    """

    def __init__(self, device: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise KernelError(
                "the first product on this device came while a graph was captured",
                where=f"cuda:{device}",
                fix="run it once before the capture, as CUDA graphs ask for",
            )
        self._lock = threading.Lock()
        self._device = device
        self._words = torch.full(
            (STREAMS, WORDS), EMPTY, dtype=torch.int32, device=f"cuda:{device}"
        )
        torch.cuda.synchronize(device)
        self._places: dict[int, int] = {}

    def address(self, stream: int, words: int) -> int:
        """Address of a stream's workspace of at least `words` words.

        Raises:
            KernelError: more than STREAMS streams asked for one, or it is too small.
        """
        with self._lock:
            place = self._places.setdefault(stream, len(self._places))
        if place >= STREAMS or words > WORDS:
            raise KernelError(
                f"stream {place + 1} of this device asks for {words} words of workspace",
                where=f"cuda:{self._device}",
                fix=f"multiply on at most {STREAMS} streams, {WORDS} words each",
            )
        return self._words[place].data_ptr()


@functools.cache
def _workspaces(device: int) -> Workspaces:
    return Workspaces(device)


def workspace(device: int, stream: int, words: int) -> int:
    """See `Workspaces.address`."""
    return _workspaces(device).address(stream, words)

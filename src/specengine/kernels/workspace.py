"""Where thread blocks of one launch meet: words that hold EMPTY between launches.

Launches that share a workspace must not overlap in time, so each stream has its own. Graphs captured
on one stream share that stream's workspace: replay them one after the other.
"""

import functools
import threading

import torch

from specengine.kernels.errors import KernelError

EMPTY = -1  # int32 view of the bit pattern that means "not arrived"
STREAMS = 8
WORDS = 2 * 132 * 128 * 64


class Workspaces:
    """Workspaces of one device, handed out to streams in the order of their first use.

    All are allocated together, because a stream may come up first while a graph is captured, where
    filling them would become a part of the graph.
    """

    def __init__(self, device: torch.device) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise KernelError(
                "the first call on a device came while a graph was captured",
                where=str(device),
                fix="call it once before the capture, as CUDA graphs ask for",
            )
        self._lock = threading.Lock()
        self._words = torch.full((STREAMS, WORDS), EMPTY, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        self._owner: dict[int, int] = {}

    def of_stream(self, stream: int) -> torch.Tensor:
        """Workspace of a stream: int32 [WORDS].

        Raises:
            KernelError: more than STREAMS streams asked for one.
        """
        with self._lock:
            place = self._owner.setdefault(stream, len(self._owner))
        if place >= STREAMS:
            raise KernelError(
                f"more than {STREAMS} streams multiply by packed weights",
                where=str(self._words.device),
                fix="use fewer streams",
            )
        return self._words[place]


@functools.cache
def workspaces(device: torch.device) -> Workspaces:
    return Workspaces(device)

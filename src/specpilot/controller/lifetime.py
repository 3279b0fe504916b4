"""Ties this process to the one that started it, however that one ends."""

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def end_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent dies; exit if it died already.

    Args:
        parent: the parent's process id, read before anything slow was done.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent died before the request took effect: no signal will come.
        sys.exit(128 + signal.SIGTERM)

"""`python -m specpilot.controller --run FOLDER`: one run's controller, ending with its parent."""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

from specpilot.controller.main import main

_SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def _end_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != parent:
        # The parent died before the request took effect: no signal will come.
        sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m specpilot.controller")
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    chosen = parser.parse_args()
    _end_with_parent(os.getppid())
    sys.exit(main(chosen.run))

"""`python -m specpilot.controller --run FOLDER`: one run's controller, ending with its parent."""

import argparse
import os
import sys
from pathlib import Path

from specpilot.controller.lifetime import end_with_parent
from specpilot.controller.main import main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m specpilot.controller")
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    chosen = parser.parse_args()
    end_with_parent(os.getppid())
    sys.exit(main(chosen.run))

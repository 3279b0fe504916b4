"""Commands answer what needs no tensor without the seconds that torch takes to import."""

import subprocess
import sys

PROGRAM = """
import sys
import specengine.server.command, specengine.train.__main__, specengine.weights.__main__
from specengine.drafters import KINDS
sys.exit("torch" in sys.modules)
"""


def test_torch_is_not_imported_before_work_begins() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0

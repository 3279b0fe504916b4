"""Trees with fitted parameters, each replayed on requests that its parameters have not seen.

Requests are halved by turns within their benchmark; what is fitted on one half is replayed on the
other (cross-fitting), so that every request counts once and none judges its own parameters.
"""

from collections import Counter
from collections.abc import Sequence

from specengine.trees import TreeBuilder
from specengine.trees.calibration import fit_calibrated, fit_sequoia, outcomes_of
from specpilot.core.errors import WorkloadError
from specpilot.engines.base import Recording

FITTED = ("calibrated", "sequoia")
"""Trees whose parameters come from recordings."""


def halves(groups: Sequence[str]) -> list[int]:
    """0 or 1 for each request, by turns within its group."""
    seen: Counter[str] = Counter()
    found = []
    for index, group in enumerate(groups):
        # A group of one alternates with the other groups of one.
        found.append((seen[group] + (index if groups.count(group) == 1 else 0)) % 2)
        seen[group] += 1
    return found


def fitted_builders(
    recordings: Sequence[Recording], groups: Sequence[str], positions: int
) -> dict[str, list[TreeBuilder]]:
    """For each fitted tree, the builder for each recording, fitted on the other half.

    Raises:
        WorkloadError: fewer than two requests, or lattices of different widths.
    """
    half = halves(groups)
    if len(set(half)) < 2:
        raise WorkloadError(
            "holds one request; fitted trees need one to fit on and another to replay",
            where="the recording",
            fix=f"record more requests, or leave out {' and '.join(FITTED)}",
        )
    widths = {item.ids.shape[2] for item in recordings}
    if len(widths) > 1:
        raise WorkloadError(
            f"hold lattices of {sorted(widths)} candidates",
            where="the recordings",
            fix="replay recordings of one drafter together",
        )
    by_half: list[dict[str, TreeBuilder]] = []
    for own in (0, 1):
        others = [item for item, side in zip(recordings, half, strict=True) if side != own]
        outcomes = outcomes_of(others)
        by_half.append(
            {"calibrated": fit_calibrated(outcomes), "sequoia": fit_sequoia(outcomes, positions)}
        )
    return {name: [by_half[side][name] for side in half] for name in FITTED}

"""Fit the seconds of a step over its verified rows, as CaDDTree needs them."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

from specengine.errors import OptionError
from specengine.trees.caddtree import StepCost


def fit_step_cost(step_seconds: Mapping[int, float]) -> StepCost:
    """Fit measured steps by nonnegative least squares over an intercept, a slope and its growths.

    Args:
        step_seconds: verified rows -> seconds per step, drafting included; 2 sizes or more.

    Raises:
        OptionError: fewer than 2 sizes, or a size or time that is not positive and finite.
    """
    rows = np.array(sorted(step_seconds), dtype=np.float64)
    seconds = np.array([step_seconds[int(row)] for row in rows], dtype=np.float64)
    if len(rows) < 2 or rows[0] < 1 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise OptionError(
            f"are {dict(step_seconds)}",
            where="step costs",
            fix="give positive seconds for two or more numbers of rows",
        )
    # A slope grows at measured sizes only, and not at the ends: nothing was measured beyond.
    starts = np.array([1.0, *rows[1:-1]])
    hinges = np.maximum(rows[:, None] - starts, 0.0)
    basis = np.column_stack([np.ones(len(rows)), hinges])
    # Relative errors: a step of 64 rows may take many times that of one.
    found, _ = nnls(basis / seconds[:, None], np.ones(len(rows)))
    grown = zip(starts.tolist(), found[1:].tolist(), strict=True)
    return StepCost(float(found[0]), tuple((start, by) for start, by in grown if by > 0))

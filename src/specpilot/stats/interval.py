"""95% interval of an equal-weight mean over groups whose sizes and spreads differ."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from scipy import special

from specpilot.core.verdict import Interval

CONFIDENCE = 0.95
_UNKNOWN_WIDTH = 10.0
"""Half width in logs when nothing is known of the spread: no ratio is excluded by it."""


def grouped_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Exponential of the mean of group means, with a two-sided t interval.

    The variance of the mean is the sum of the groups' own over their number squared, and the
    degrees of freedom are Welch's and Satterthwaite's. A group of one value borrows the pooled
    variance of the others; where all groups hold one value, their spread around the mean stands in
    (it contains true differences between groups, so it errs to the wide side). One value in all
    gives an interval that excludes nothing.

    Args:
        groups: natural logs of ratios; at least one group, none empty.
    """
    mean = fmean(fmean(values) for values in groups)
    width = _half_width(groups)
    return Interval(point=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width))


def _half_width(groups: Sequence[Sequence[float]]) -> float:
    terms = _variance_terms(groups)
    if not terms:
        return _UNKNOWN_WIDTH
    total = math.fsum(term for term, _ in terms)
    if total == 0:
        return 0.0
    # Shares, since the square of a tiny variance underflows.
    free = 1 / math.fsum((term / total) ** 2 / own for term, own in terms)
    quantile = float(special.stdtrit(free, (1 + CONFIDENCE) / 2))
    return quantile * math.sqrt(total) / len(groups)


def _variance_terms(groups: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """(variance of a group's mean, its degrees of freedom); singles share one term."""
    several = [values for values in groups if len(values) > 1]
    singles = len(groups) - len(several)
    terms = [(_variance(values) / len(values), len(values) - 1) for values in several]
    if singles and several:
        free = sum(len(values) - 1 for values in several)
        pooled = math.fsum(_variance(values) * (len(values) - 1) for values in several) / free
        terms.append((singles * pooled, free))
    elif singles > 1:
        spread = _variance([values[0] for values in groups])
        terms.append((singles * spread, singles - 1))
    return terms


def _variance(values: Sequence[float]) -> float:
    return float(np.var(values, ddof=1))

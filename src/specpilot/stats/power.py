"""Power of the promotion rule: how likely a true gain is to be promoted.

Shown before device time is spent, so that a candidate is not starved by too few requests. The
model: log ratios of requests are normal with a known spread, all benchmarks equally long, and each
paired run adds a shift of its own that the request-level interval cannot see.
"""

import math

import numpy as np
from scipy import stats as distributions

from specpilot.stats.interval import CONFIDENCE

_NODES = 41
_NORMAL_BEYOND = 400


def promotion_power(
    true_gain: float,
    *,
    threshold: float,
    request_noise: float,
    pairs: int,
    benchmarks: int = 1,
    run_noise: float = 0.0,
) -> float:
    """Probability that the gain's lower 95% bound exceeds 1 + threshold.

    Args:
        true_gain: such as 0.02 for a system 2% faster.
        threshold: what the bound minus 1 has to exceed.
        request_noise: standard deviation of a request's log ratio within its benchmark.
        pairs: requests over all benchmarks; more than `benchmarks`.
        benchmarks: groups of equal size.
        run_noise: standard deviation in logs of the shift of the whole paired run.

    Raises:
        ValueError: no degree of freedom is left, or a spread is negative.
    """
    if pairs <= benchmarks:
        raise ValueError(f"{pairs} pairs over {benchmarks} benchmarks leave no spread to estimate")
    if request_noise < 0 or run_noise < 0:
        raise ValueError("a spread cannot be negative")
    lead = math.log1p(true_gain) - math.log1p(threshold)
    if run_noise == 0:
        return _bound_exceeds(lead, request_noise, pairs, benchmarks)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    shares = weights / weights.sum()
    return float(
        sum(
            share * _bound_exceeds(lead + run_noise * node, request_noise, pairs, benchmarks)
            for node, share in zip(nodes.tolist(), shares.tolist(), strict=True)
        )
    )


def pairs_needed(
    true_gain: float,
    *,
    threshold: float,
    request_noise: float,
    benchmarks: int = 1,
    run_noise: float = 0.0,
    power: float = 0.8,
    most: int = 100_000,
) -> int | None:
    """Fewest pairs, a multiple of `benchmarks`, that reach `power`; None where `most` do not."""

    def reaches(groups: int) -> bool:
        chance = promotion_power(
            true_gain,
            threshold=threshold,
            request_noise=request_noise,
            pairs=groups * benchmarks,
            benchmarks=benchmarks,
            run_noise=run_noise,
        )
        return chance >= power

    low, high = 1, max(most // benchmarks, 2)
    if not reaches(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high * benchmarks


def _bound_exceeds(lead: float, request_noise: float, pairs: int, benchmarks: int) -> float:
    """Chance that mean - t * error > threshold when the true mean lies `lead` above it."""
    if request_noise == 0:
        return float(lead > 0)
    free = pairs - benchmarks
    shift = lead * math.sqrt(pairs) / request_noise
    quantile = float(distributions.t.ppf((1 + CONFIDENCE) / 2, free))
    # scipy's non-central t fails far out; there t and the normal distribution agree.
    if free > _NORMAL_BEYOND or abs(shift) > 30:
        return float(distributions.norm.sf(quantile - shift))
    return float(distributions.nct.sf(quantile, free, shift))

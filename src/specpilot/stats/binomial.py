"""Rates of rare events: the exact conditional test, and differences clustered by request."""

import math
from collections.abc import Sequence

from scipy import special

Cluster = tuple[int, int]
"""(events, trials) of one request."""
CONFIDENCE = 0.95


def event_rate_p_value(
    new_events: int, new_tokens: int, stock_events: int, stock_tokens: int
) -> float:
    """Chance of at least `new_events` if events are as frequent per token as stock's.

    Exact and one-sided: given the sum of both counts, the new one is binomial with the new
    tokens' share of all tokens; its tail is an incomplete beta function. 1 without events.

    Raises:
        ValueError: events, but no tokens on one of the sides.
    """
    if new_events == 0:
        return 1.0
    if new_tokens <= 0 or stock_tokens <= 0:
        raise ValueError("events are compared per token: both sides need tokens")
    share = new_tokens / (new_tokens + stock_tokens)
    return float(special.betainc(new_events, stock_events + 1, share))


def clustered_rate_difference(
    new: Sequence[Cluster], stock: Sequence[Cluster]
) -> tuple[float, float]:
    """95% interval of the new rate minus stock's, with whole requests as the unit.

    Tokens of one output are not independent, so the variance of each ratio comes from the
    requests' residuals, with Welch's degrees of freedom. (-1, 1) where a side has fewer than two
    requests with trials: one request says nothing about the next.
    """
    sides = [_ratio([cluster for cluster in side if cluster[1] > 0]) for side in (new, stock)]
    if any(side is None for side in sides):
        return -1.0, 1.0
    (rate, variance, count), (base, base_variance, base_count) = [s for s in sides if s is not None]
    total = variance + base_variance
    difference = rate - base
    if total == 0:
        return difference, difference
    free = total**2 / (variance**2 / (count - 1) + base_variance**2 / (base_count - 1))
    width = float(special.stdtrit(free, (1 + CONFIDENCE) / 2)) * math.sqrt(total)
    return difference - width, difference + width


def _ratio(clusters: Sequence[Cluster]) -> tuple[float, float, int] | None:
    """Rate, variance of the rate, and number of clusters."""
    count = len(clusters)
    if count < 2:
        return None
    trials = sum(cluster[1] for cluster in clusters)
    rate = sum(cluster[0] for cluster in clusters) / trials
    squares = sum((events - rate * size) ** 2 for events, size in clusters)
    return rate, squares * count / (count - 1) / trials**2, count

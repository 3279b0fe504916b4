"""Exact tests agree with scipy and with enumeration; clustered intervals cover the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from specpilot.stats.binomial import clustered_rate_difference, event_rate_p_value

counts = st.integers(0, 40)
sizes = st.integers(1, 5000)


@given(counts, sizes, counts, sizes)
def test_event_p_value_is_scipys_exact_binomial(
    new: int, new_tokens: int, stock: int, stock_tokens: int
) -> None:
    found = event_rate_p_value(new, new_tokens, stock, stock_tokens)
    if new + stock == 0:
        assert found == 1
        return
    share = new_tokens / (new_tokens + stock_tokens)
    exact = distributions.binomtest(new, new + stock, share, alternative="greater").pvalue
    assert found == pytest.approx(exact, abs=1e-12)


def test_events_without_tokens_are_an_error() -> None:
    assert event_rate_p_value(0, 0, 0, 0) == 1
    with pytest.raises(ValueError, match="both sides need tokens"):
        event_rate_p_value(1, 10, 0, 0)


def test_five_events_against_none_are_significant_and_four_are_not() -> None:
    assert event_rate_p_value(5, 1000, 0, 1000) == pytest.approx(1 / 32)
    assert event_rate_p_value(4, 1000, 0, 1000) == pytest.approx(1 / 16)


def test_one_request_gives_no_interval() -> None:
    assert clustered_rate_difference([(5, 10)], [(0, 10), (0, 10)]) == (-1.0, 1.0)
    assert clustered_rate_difference([(5, 10), (0, 0)], [(0, 10), (0, 10)]) == (-1.0, 1.0)


def test_equal_requests_of_equal_rates_have_no_variance() -> None:
    low, high = clustered_rate_difference([(1, 10)] * 3, [(0, 10)] * 3)
    assert low == high == pytest.approx(0.1)


def test_intervals_cover_a_true_difference_under_clustering() -> None:
    random = np.random.default_rng(3)

    def draw(mean: float) -> list[tuple[int, int]]:
        # Each request has a rate of its own: tokens of a request are correlated.
        rates = random.beta(mean * 50, (1 - mean) * 50, size=60)
        lengths = random.integers(50, 400, size=60)
        return [(int(random.binomial(n, p)), int(n)) for n, p in zip(lengths, rates, strict=True)]

    covered = 0
    for _ in range(300):
        low, high = clustered_rate_difference(draw(0.03), draw(0.01))
        covered += low <= 0.02 <= high
    assert 0.92 <= covered / 300 <= 0.98

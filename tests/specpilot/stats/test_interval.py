"""Grouped intervals against scipy where it has an answer, and by simulation where it has none."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions

from specpilot.stats.interval import grouped_interval

values = st.lists(st.floats(-1, 1), min_size=2, max_size=20)


@settings(deadline=None)
@given(values)
def test_one_group_is_scipys_t_interval(group: list[float]) -> None:
    found = grouped_interval([group])
    assert math.log(found.point) == pytest.approx(np.mean(group), abs=1e-12)
    if np.ptp(group) > 1e-9:
        exact = distributions.ttest_1samp(group, 0).confidence_interval(0.95)
        assert math.log(found.low) == pytest.approx(exact.low, abs=1e-9)
        assert math.log(found.high) == pytest.approx(exact.high, abs=1e-9)


@settings(deadline=None)
@given(values, values)
def test_two_groups_are_scipys_welch_interval(one: list[float], two: list[float]) -> None:
    if np.ptp(one) < 1e-6 or np.ptp(two) < 1e-6:
        return
    found = grouped_interval([one, two])
    # The mean of one and two is half the difference of one and minus two.
    exact = distributions.ttest_ind(one, [-v for v in two], equal_var=False)
    interval = exact.confidence_interval(0.95)
    assert 2 * math.log(found.low) == pytest.approx(interval.low, abs=1e-9)
    assert 2 * math.log(found.high) == pytest.approx(interval.high, abs=1e-9)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8, 8), (3, 20, 20), (1, 1, 1, 1, 1), (1, 6, 6)])
def test_intervals_cover_the_truth(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(11)
    covered, draws = 0, 1500
    for _ in range(draws):
        spreads = [0.05] * len(sizes) if 1 in sizes else 0.02 * (1 + np.arange(len(sizes)))
        groups = [rng.normal(0.03, s, n).tolist() for s, n in zip(spreads, sizes, strict=True)]
        found = grouped_interval(groups)
        covered += found.low <= math.exp(0.03) <= found.high
    assert 0.935 <= covered / draws <= 0.975


def test_one_value_excludes_nothing_and_equal_values_are_certain() -> None:
    alone = grouped_interval([[0.5]])
    assert alone.low < 0.001
    assert alone.high > 1000
    equal = grouped_interval([[0.1, 0.1], [0.1, 0.1]])
    assert equal.low == pytest.approx(equal.high)

"""Power against simulated paired runs that go through the interval and the rule's bound."""

import math

import numpy as np
import pytest

from specpilot.stats.interval import grouped_interval
from specpilot.stats.power import pairs_needed, promotion_power

DRAWS = 800


def simulated(
    true_gain: float, threshold: float, noise: float, sizes: tuple[int, ...], run_noise: float
) -> float:
    rng = np.random.default_rng(5)
    promoted = 0
    for _ in range(DRAWS):
        shift = math.log1p(true_gain) + rng.normal(0, run_noise)
        groups = [rng.normal(shift, noise, size).tolist() for size in sizes]
        promoted += grouped_interval(groups).low > 1 + threshold
    return promoted / DRAWS


@pytest.mark.parametrize(
    ("true_gain", "threshold", "noise", "sizes", "run_noise"),
    [
        (0.02, 0.012, 0.03, (60,), 0.0),
        (0.04, 0.03, 0.08, (400,), 0.0),
        (0.04, 0.02, 0.05, (10,) * 5, 0.01),
        (0.03, 0.012, 0.06, (20,) * 3, 0.003),
    ],
)
def test_power_is_what_simulation_finds(
    true_gain: float, threshold: float, noise: float, sizes: tuple[int, ...], run_noise: float
) -> None:
    found = promotion_power(
        true_gain,
        threshold=threshold,
        request_noise=noise,
        pairs=sum(sizes),
        benchmarks=len(sizes),
        run_noise=run_noise,
    )
    expected = simulated(true_gain, threshold, noise, sizes, run_noise)
    # Welch's degrees of freedom are estimated, the formula's are exact for equal spreads.
    assert found == pytest.approx(expected, abs=0.05)
    assert 0.05 < found < 0.99


@pytest.mark.parametrize("sizes", [(8,) * 5, (3,) * 5, (1,) * 5, (100,)])
@pytest.mark.parametrize("noise", [0.01, 0.08])
def test_a_null_change_is_promoted_far_less_than_once_in_twenty(
    sizes: tuple[int, ...], noise: float
) -> None:
    # No shift between runs: request noise alone.
    assert simulated(0.0, 0.01, noise, sizes, 0.0) <= 0.03
    # Shifts as large as the band that was believed.
    assert simulated(0.0, 0.01 + 2 * 0.005, noise, sizes, 0.005) <= 0.03


def test_a_true_four_percent_is_promoted_and_the_threshold_itself_rarely() -> None:
    assert simulated(0.04, 0.012, 0.01, (20,) * 5, 0.001) == 1.0
    at_threshold = promotion_power(0.01, threshold=0.01, request_noise=0.02, pairs=50)
    assert at_threshold == pytest.approx(0.025)


def test_power_grows_with_gain_and_pairs_and_is_never_nan() -> None:
    gains = [-0.9, -0.05, 0.0, 0.01, 0.02, 0.05, 0.5, 5.0]
    for pairs in (2, 3, 10, 500, 5000):
        powers = [
            promotion_power(g, threshold=0.01, request_noise=0.01, pairs=pairs) for g in gains
        ]
        assert powers == sorted(powers)
        assert all(0 <= power <= 1 for power in powers)
    assert promotion_power(0.02, threshold=0.01, request_noise=0, pairs=2) == 1
    assert promotion_power(0.01, threshold=0.01, request_noise=0, pairs=2) == 0


def test_pairs_needed_is_the_first_count_that_reaches_the_power() -> None:
    known = {"threshold": 0.03, "request_noise": 0.08, "benchmarks": 5}
    pairs = pairs_needed(0.05, **known, power=0.8)
    assert pairs is not None
    assert pairs % 5 == 0
    assert promotion_power(0.05, **known, pairs=pairs) >= 0.8
    assert promotion_power(0.05, **known, pairs=pairs - 5) < 0.8
    assert pairs_needed(0.02, **known) is None


def test_too_few_pairs_and_negative_spreads_are_refused() -> None:
    with pytest.raises(ValueError, match="no spread"):
        promotion_power(0.1, threshold=0.01, request_noise=0.01, pairs=5, benchmarks=5)
    with pytest.raises(ValueError, match="negative"):
        promotion_power(0.1, threshold=0.01, request_noise=-1, pairs=5)

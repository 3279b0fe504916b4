"""What the A/A noise means is said in the promotion rule's own numbers."""

import pytest

from specpilot.controller.noise import needed_gain, noise_warning, spell_limit, spell_noise
from specpilot.controller.promotion import threshold
from specpilot.core.verdict import Gain, Interval


@pytest.mark.parametrize("noise", [0.0, 0.002, 0.04, 2.47])
def test_the_words_use_the_rule_that_decides(noise: float) -> None:
    one = Interval(point=1.0, low=1.0, high=1.0)
    gain = Gain(overall=one, per_benchmark={}, pairs=1, run_means=(1.0,), diverged_share=0.0)
    assert needed_gain(noise) == threshold(gain, noise)


def test_noise_is_said_with_what_it_excludes() -> None:
    assert spell_noise(0.021) == (
        "A/A noise ±2.1%: a gain under 5.2% cannot be promoted at this noise"
    )
    assert spell_limit(0.0021) == "at A/A noise ±0.21% no gain under 1.4% can be"


def test_large_noise_is_a_warning_with_a_way_out() -> None:
    assert noise_warning(None) is None
    assert noise_warning(0.05) is None
    moderate, huge = noise_warning(0.06), noise_warning(2.47)
    assert moderate is not None
    assert huge is not None
    assert "gains above 13%" in moderate
    assert "hardly" not in moderate
    assert "gains above 495%" in huge
    assert "hardly prove anything" in huge
    for remedy in ("stop other work", "engine.threads", "workload.development"):
        assert remedy in huge

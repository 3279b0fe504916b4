"""Gains of paired runs built by hand and drawn with a known truth."""

import math

import numpy as np
import pytest

from specpilot.core.measurement import Counters, Isolation, Measurement, PairedRun, Provenance
from specpilot.core.requests import FinishReason, RequestOutcome
from specpilot.core.system import System
from specpilot.stats.gain import noise_band, paired_gain

Rates = dict[str, tuple[float, float]]
"""Request id -> tokens per second in each of the two passes."""

SYSTEM = System(commit="0" * 40, tree_hash="0" * 40, options={})
COUNTERS = Counters(
    steps=1, emitted_tokens=1, drafted_tokens=1, verified_rows=1, activations={}, seconds={}
)
ORIGIN = Provenance(
    model_hash="m",
    drafter_hash="d",
    tokenizer_hash="t",
    request_set_hash="r",
    devices=(),
    isolation=Isolation.NONE,
    cache_policy="flushed before each block",
    client_version="0",
    started_at="2026-01-01T00:00:00Z",
)


def outcome(request: str, rate: float, tokens: tuple[int, ...] = (1, 2, 3)) -> RequestOutcome:
    return RequestOutcome(
        request_id=request,
        benchmark=request.split("/")[0],
        finish_reason=FinishReason.STOP,
        output_token_ids=tokens,
        seconds=len(tokens) / rate,
    )


def arm(name: str, rates: Rates, parted: frozenset[str] = frozenset()) -> Measurement:
    passes = tuple(
        tuple(
            outcome(request, pair[index], (1, 2, 4) if request in parted else (1, 2, 3))
            for request, pair in rates.items()
        )
        for index in range(2)
    )
    return Measurement(
        arm=name,
        system=SYSTEM,
        autoregressive=False,
        passes=passes,
        counters=COUNTERS,
        provenance=ORIGIN,
    )


def pair(base: Rates, new: Rates, parted: frozenset[str] = frozenset()) -> PairedRun:
    return PairedRun(
        id="run", order="ABBA", baseline=arm("baseline", base), candidate=arm("new", new, parted)
    )


BASE: Rates = {"gsm8k/0": (10, 10), "gsm8k/1": (20, 20), "mbpp/0": (5, 5), "mbpp/1": (5, 5)}


def test_benchmarks_weigh_equally_whatever_their_size() -> None:
    base = BASE | {"mbpp/2": (5.0, 5.0)}
    factor = {"gsm8k": 4.0, "mbpp": 1.0}
    new = {key: tuple(r * factor[key.split("/")[0]] for r in rates) for key, rates in base.items()}
    found = paired_gain(pair(base, new))
    assert found.overall.point == pytest.approx(2.0)
    assert found.per_benchmark["gsm8k"].point == pytest.approx(4.0)
    assert found.per_benchmark["mbpp"].point == pytest.approx(1.0)
    assert found.pairs == 5
    assert found.run_means == pytest.approx((2.0, 2.0))
    assert found.diverged_share == 0


def test_halves_are_the_gain_of_each_pass_alone() -> None:
    new = {key: (first * 1.1, second * 1.2) for key, (first, second) in BASE.items()}
    found = paired_gain(pair(BASE, new))
    assert found.run_means == pytest.approx((1.1, 1.2))
    assert found.overall.point == pytest.approx(math.sqrt(1.1 * 1.2))


def test_share_of_requests_whose_output_differs() -> None:
    assert paired_gain(pair(BASE, BASE, frozenset({"mbpp/1"}))).diverged_share == 0.25


def test_swapping_the_arms_inverts_the_gain() -> None:
    rng = np.random.default_rng(0)
    one = {key: tuple(rng.uniform(5, 20, 2).tolist()) for key in BASE}
    two = {key: tuple(rng.uniform(5, 20, 2).tolist()) for key in BASE}
    forth, back = paired_gain(pair(one, two)).overall, paired_gain(pair(two, one)).overall
    assert forth.point == pytest.approx(1 / back.point)
    assert forth.low == pytest.approx(1 / back.high)


def test_other_requests_or_a_failed_one_are_refused() -> None:
    fewer = {key: BASE[key] for key in list(BASE)[1:]}
    with pytest.raises(ValueError, match="same requests"):
        paired_gain(pair(BASE, fewer))
    broken = pair(BASE, BASE)
    failed = broken.baseline.passes[0][0].model_copy(update={"finish_reason": FinishReason.FAILED})
    passes = ((failed, *broken.baseline.passes[0][1:]), broken.baseline.passes[1])
    baseline = broken.baseline.model_copy(update={"passes": passes})
    with pytest.raises(ValueError, match="no rate"):
        paired_gain(broken.model_copy(update={"baseline": baseline}))


def test_noise_band_counts_bias_and_ignorance() -> None:
    biased = {key: (first * 1.05, second * 1.05) for key, (first, second) in BASE.items()}
    assert noise_band(paired_gain(pair(BASE, biased))) == pytest.approx(0.05)
    assert noise_band(paired_gain(pair(biased, BASE))) == pytest.approx(0.05)
    alone = {"gsm8k/0": (10.0, 10.0)}
    assert noise_band(paired_gain(pair(alone, alone))) > 1000


def test_one_request_per_benchmark_is_not_certainty() -> None:
    base = {f"{name}/0": (10.0, 10.0) for name in ("gsm8k", "math500", "mbpp")}
    new = {key: (rate, rate) for key, rate in zip(base, (10.2, 10.9, 10.6), strict=True)}
    found = paired_gain(pair(base, new)).overall
    assert found.low < 1.02 < found.point < found.high

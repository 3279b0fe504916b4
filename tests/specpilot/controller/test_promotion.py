"""The promotion rule, its order, and what is void, undecided or refused before it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.promotion import Evidence, judge, threshold
from specpilot.core.verdict import Gain, Interval, Reason, VerdictKind
from specpilot.loop.facts import ForcingFacts


def gain(
    point: float, half: float = 0.005, *, halves: tuple[float, ...] = (), diverged: float = 0.0
) -> Gain:
    interval = Interval(point=point, low=point * (1 - half), high=point * (1 + half))
    return Gain(
        overall=interval,
        per_benchmark={"gsm8k": interval},
        pairs=40,
        run_means=halves or (point, point),
        diverged_share=diverged,
    )


def forcing(*, accepted: bool, unexplained: int = 0) -> ForcingFacts:
    return ForcingFacts(
        accepted=accepted,
        reasons=() if accepted else ("events",) if unexplained else ("rate",),
        tokens=1000,
        mismatches=20,
        mismatch_rate=0.02,
        stock_mismatch_rate=0.01,
        delta_nats=0.125,
        large_margin_events=unexplained,
        unexplained=unexplained,
    )


EVIDENCE = Evidence(
    attempt=1,
    noise=0.002,
    gain=gain(1.05),
    failed=0,
    forcing=forcing(accepted=True),
    baseline_share=1.0,
    slowest_share=0.9,
)


def test_a_clear_gain_is_promoted() -> None:
    verdict = judge(EVIDENCE)

    assert (verdict.kind, verdict.reason) == (VerdictKind.PROMOTED, Reason.SIGNIFICANT_GAIN)
    assert verdict.threshold == pytest.approx(0.014)


@pytest.mark.parametrize(
    ("noise", "diverged", "expected"),
    [(0.0, 0.0, 0.01), (0.002, 0.0, 0.014), (0.002, 0.1, 0.03), (0.02, 0.1, 0.05)],
)
def test_threshold(noise: float, diverged: float, expected: float) -> None:
    assert threshold(gain(1.1, diverged=diverged), noise) == pytest.approx(expected)


def test_diverged_outputs_need_three_percent() -> None:
    equal = replace(EVIDENCE, gain=gain(1.025))
    diverged = replace(EVIDENCE, gain=gain(1.025, diverged=0.05))

    assert judge(equal).kind is VerdictKind.PROMOTED
    assert judge(diverged).reason is Reason.BELOW_THRESHOLD


def test_a_wide_interval_around_the_threshold_is_undecided() -> None:
    assert judge(replace(EVIDENCE, gain=gain(1.02, 0.02))).reason is Reason.LOW_POWER
    assert judge(replace(EVIDENCE, gain=gain(1.02, 0.007))).reason is Reason.BELOW_THRESHOLD
    assert judge(replace(EVIDENCE, gain=gain(0.95, 0.02))).reason is Reason.BELOW_THRESHOLD


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"failed": 1, "gain": None}, VerdictKind.VOID, Reason.FAILED_REQUESTS),
        ({"gain": gain(1.2, halves=(1.0, 1.4))}, VerdictKind.VOID, Reason.RUN_MEANS_DISAGREE),
        ({"baseline_share": 0.7}, VerdictKind.VOID, Reason.BASELINE_OUT_OF_BAND),
        ({"forcing": forcing(accepted=False)}, VerdictKind.NOT_PROMOTED, Reason.FORCING_RATE),
        (
            {"forcing": forcing(accepted=False, unexplained=5)},
            VerdictKind.NOT_PROMOTED,
            Reason.FORCING_EVENTS,
        ),
        (
            {"changed_options": {"tree": "best_first"}, "activations": {"tree": 0}},
            VerdictKind.NOT_PROMOTED,
            Reason.NOT_ACTIVATED,
        ),
    ],
)
def test_what_comes_before_the_rule(
    change: dict[str, object], kind: VerdictKind, reason: Reason
) -> None:
    verdict = judge(replace(EVIDENCE, **change))

    assert (verdict.kind, verdict.reason) == (kind, reason)


def test_activation_counts_of_code_without_options_decide_nothing() -> None:
    assert judge(replace(EVIDENCE, activations={"x": 0})).kind is VerdictKind.PROMOTED


@given(
    point=st.floats(0.5, 3.0),
    half=st.floats(0.0001, 0.5),
    noise=st.floats(0, 0.2),
    diverged=st.sampled_from([0.0, 0.5]),
)
def test_promoted_exactly_when_the_lower_bound_exceeds_the_threshold(
    point: float, half: float, noise: float, diverged: float
) -> None:
    measured = gain(point, half, diverged=diverged)
    verdict = judge(replace(EVIDENCE, gain=measured, noise=noise))

    exceeds = measured.overall.low > 1 + threshold(measured, noise)
    assert (verdict.kind is VerdictKind.PROMOTED) == exceeds

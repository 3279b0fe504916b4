"""Verdicts of the controller: four kinds, each with a reason that a program can read."""

from enum import StrEnum

from specpilot.core.numbers import Count, NonNegative, Positive, PositiveInt, Share
from specpilot.core.record import Record


class VerdictKind(StrEnum):
    """The four outcomes of an attempt."""

    PROMOTED = "promoted"
    NOT_PROMOTED = "not_promoted"
    UNDECIDED = "undecided"
    VOID = "void"


class Reason(StrEnum):
    """Why a verdict is what it is."""

    SIGNIFICANT_GAIN = "significant_gain"
    BELOW_THRESHOLD = "below_threshold"
    LOW_POWER = "low_power"
    RUN_MEANS_DISAGREE = "run_means_disagree"
    FORCING_RATE = "forcing_rate"
    FORCING_EVENTS = "forcing_events"
    CHECK_FAILED = "check_failed"
    FORBIDDEN_PATH = "forbidden_path"
    CONFLICT = "conflict"
    NOT_ACTIVATED = "not_activated"
    ATTEMPTS_SPENT = "attempts_spent"
    FAILED_REQUESTS = "failed_requests"
    ENGINE_FAILURE = "engine_failure"
    BASELINE_OUT_OF_BAND = "baseline_out_of_band"
    TAMPERED = "tampered"
    ISOLATION_TOO_WEAK = "isolation_too_weak"
    CLOSED_ON_BOUND = "closed_on_bound"
    AGENT_ENDED = "agent_ended"


class Interval(Record):
    """A ratio with its 95% interval, full precision."""

    point: Positive
    low: Positive
    high: Positive


class Gain(Record):
    """Geometric mean of per-request rate ratios per benchmark, equal weight over benchmarks."""

    overall: Interval
    per_benchmark: dict[str, Interval]
    pairs: PositiveInt
    run_means: tuple[Positive, ...]
    """Gain of each half (device assignment or A B / B A block) alone."""
    diverged_share: Share
    """Share of requests whose output tokens differ between the arms."""


class Verdict(Record):
    """What `promotion.py` decided about one attempt."""

    kind: VerdictKind
    reason: Reason
    detail: str
    """One line with the numbers that decided."""
    gain: Gain | None = None
    threshold: NonNegative | None = None
    """The lower bound had to exceed 1 + threshold."""
    attempt: Count = 0

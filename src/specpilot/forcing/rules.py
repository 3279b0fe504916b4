"""The rules of token forcing (paper section 3.3): rate, events, ends of outputs. Pure.

A system is accepted only if no rule refuses it and there was enough to judge by.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from specpilot.core.measurement import OutputScore
from specpilot.core.numbers import Count, Finite, NonNegative, Share
from specpilot.core.record import Record
from specpilot.forcing.audit import LargeMarginEvent
from specpilot.forcing.outputs import ForcedOutput
from specpilot.forcing.reference import StockReference, mismatch_rate, tally
from specpilot.stats.binomial import clustered_rate_difference, event_rate_p_value

RATE_EXCESS = 0.005
"""A mismatch rate may exceed stock's by half a point."""
SIGNIFICANCE = 0.05
MIN_OUTPUTS = 2
MIN_TOKENS = 32
"""Fewer outputs or tokens show nothing: such a system is not accepted."""


class ForcingReason(StrEnum):
    """What a system is rejected for."""

    RATE = "rate"
    EVENTS = "events"
    EARLY_END = "early_end"
    FAILED_REQUESTS = "failed_requests"
    TOO_LITTLE = "too_little"


class ForcingResult(Record):
    """The verdict and every number behind it."""

    verdict: Literal["accepted", "rejected"]
    reasons: tuple[ForcingReason, ...]
    detail: str
    """One line with the numbers that decided."""
    outputs: Count
    tokens: Count
    mismatches: Count
    mismatch_rate: Share
    stock_mismatch_rate: Share
    rate_difference_low: Finite
    rate_difference_high: Finite
    """95% interval of the rate minus stock's, clustered by request."""
    delta_nats: NonNegative
    large_margin_events: Count
    """Mismatches with a margin above 2 delta."""
    unexplained: Count
    """Large-margin events that the audit did not explain."""
    stock_events: Count
    stock_tokens: Count
    event_p_value: Share
    """Chance of at least so many unexplained events if they were as frequent as stock's."""
    early_ends: Count
    """Outputs that ended with neither a limit nor a stop token that the scorer bears out."""
    failed_requests: Count
    events: tuple[LargeMarginEvent, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether the outputs pass."""
        return self.verdict == "accepted"


def judge(
    outputs: Sequence[ForcedOutput],
    scores: Sequence[OutputScore],
    events: Sequence[LargeMarginEvent],
    reference: StockReference,
    *,
    stop_ids: frozenset[int],
    failed_requests: int = 0,
) -> ForcingResult:
    """Apply all rules.

    Args:
        outputs: what the system emitted.
        scores: their scores, in the same order.
        events: their large-margin events, audited.
        reference: stock under the same scorer.
        stop_ids: tokens that may end an output.
        failed_requests: requests without an output.
    """
    tallies = [tally(score) for score in scores]
    tokens = sum(entry.tokens for entry in tallies)
    unexplained = [event for event in events if event.explanation is None]
    low, high = clustered_rate_difference(
        [(entry.mismatches, entry.tokens) for entry in tallies],
        [(entry.mismatches, entry.tokens) for entry in reference.tallies],
    )
    too_little = min(len(outputs), len(reference.tallies)) < MIN_OUTPUTS
    too_little |= min(tokens, reference.tokens) < MIN_TOKENS
    # Where the test has too few tokens the verdict is a rejection already.
    p_value = (
        0.0
        if too_little and unexplained
        else event_rate_p_value(
            len(unexplained), tokens, reference.large_margin_events, reference.tokens
        )
    )
    early = sum(output.ends_early(stop_ids) for output in outputs)
    early += sum(event.ends_output for event in unexplained)
    reasons = _reasons(
        too_little=too_little,
        rate=not low <= RATE_EXCESS,
        events=not p_value >= SIGNIFICANCE,
        early=early > 0,
        failed=failed_requests > 0,
    )
    rate, stock_rate = mismatch_rate(tallies), reference.mismatch_rate
    detail = (
        f"{'rejected' if reasons else 'accepted'}: mismatch rate {rate:.2%} (stock "
        f"{stock_rate:.2%}, difference at least {low * 100:+.2f} points), {len(unexplained)} of "
        f"{len(events)} large-margin events unexplained (p = {p_value:.2g}), {early} early ends, "
        f"{failed_requests} failed, {tokens} tokens"
    )
    return ForcingResult(
        verdict="rejected" if reasons else "accepted",
        reasons=reasons,
        detail=detail,
        outputs=len(outputs),
        tokens=tokens,
        mismatches=sum(entry.mismatches for entry in tallies),
        mismatch_rate=rate,
        stock_mismatch_rate=stock_rate,
        rate_difference_low=low,
        rate_difference_high=high,
        delta_nats=reference.delta_nats,
        large_margin_events=len(events),
        unexplained=len(unexplained),
        stock_events=reference.large_margin_events,
        stock_tokens=reference.tokens,
        event_p_value=p_value,
        early_ends=early,
        failed_requests=failed_requests,
        events=tuple(events),
    )


def _reasons(
    *, too_little: bool, rate: bool, events: bool, early: bool, failed: bool
) -> tuple[ForcingReason, ...]:
    found = {
        ForcingReason.RATE: rate,
        ForcingReason.EVENTS: events,
        ForcingReason.EARLY_END: early,
        ForcingReason.FAILED_REQUESTS: failed,
        ForcingReason.TOO_LITTLE: too_little,
    }
    return tuple(reason for reason, holds in found.items() if holds)

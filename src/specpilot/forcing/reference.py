"""What stock shows under its own scorer: the measure that candidates are held against."""

import math
from collections.abc import Sequence

from specpilot.core.measurement import OutputScore, TokenScore
from specpilot.core.numbers import Count, NonNegative
from specpilot.core.record import Record

STEPS_PER_NAT = 8
"""delta is a multiple of 1/8 nat."""


class Tally(Record):
    """Mismatches among the tokens of one output."""

    mismatches: Count
    tokens: Count


class StockReference(Record):
    """Stock's near-tie threshold, its mismatches and its large-margin events."""

    delta_nats: NonNegative
    """Largest margin at stock's first departures from AR, rounded up to a multiple of 1/8."""
    departures: Count
    """Requests whose stock output leaves AR's."""
    tallies: tuple[Tally, ...]
    """One per stock output."""
    large_margin_events: Count

    @property
    def tokens(self) -> int:
        """Tokens that stock emitted."""
        return sum(tally.tokens for tally in self.tallies)

    @property
    def mismatch_rate(self) -> float:
        """Share of stock's tokens that are not the scorer's argmax."""
        return mismatch_rate(self.tallies)


def make_reference(
    stock: Sequence[OutputScore], autoregressive: Sequence[OutputScore]
) -> StockReference:
    """The reference from scores of stock's and AR's outputs on the same requests."""
    margins = departure_margins(stock, autoregressive)
    delta = round_up(max(margins, default=0.0))
    return StockReference(
        delta_nats=delta,
        departures=len(margins),
        tallies=tuple(tally(score) for score in stock),
        large_margin_events=sum(
            is_large(token, delta) for score in stock for token in score.tokens
        ),
    )


def departure_margins(
    stock: Sequence[OutputScore], autoregressive: Sequence[OutputScore]
) -> list[float]:
    """Margin in nats where each stock output first leaves AR's, for those that do.

    Up to there both have one context, so the scorer's gap is the larger of the two margins: one of
    both tokens is usually the argmax itself.
    """
    others = {score.request_id: score.tokens for score in autoregressive}
    margins = []
    for score in stock:
        pairs = zip(score.tokens, others.get(score.request_id, ()), strict=False)
        gaps = (max(a.margin_nats, b.margin_nats) for a, b in pairs if a.token != b.token)
        first = next(gaps, None)
        if first is not None:
            margins.append(first)
    return margins


def round_up(margin_nats: float) -> float:
    """The next multiple of 1/8 nat, at least 1/8: stock without a departure measured no tie."""
    return max(math.ceil(margin_nats * STEPS_PER_NAT), 1) / STEPS_PER_NAT


def is_mismatch(token: TokenScore) -> bool:
    """Whether an emitted token is not the scorer's argmax."""
    return token.token != token.argmax


def is_large(token: TokenScore, delta_nats: float) -> bool:
    """Whether a token is a large-margin event: a mismatch by more than 2 delta."""
    # Written so that a margin that compares with nothing counts as an event.
    return is_mismatch(token) and not token.margin_nats <= 2 * delta_nats


def tally(score: OutputScore) -> Tally:
    """Mismatches of one output."""
    wrong = sum(is_mismatch(token) for token in score.tokens)
    return Tally(mismatches=wrong, tokens=len(score.tokens))


def mismatch_rate(tallies: Sequence[Tally]) -> float:
    """Mismatches per token; 0 without tokens."""
    tokens = sum(entry.tokens for entry in tallies)
    return sum(entry.mismatches for entry in tallies) / tokens if tokens else 0.0

"""Sampling from the target, and why drafts cannot change it (paper section 2.1).

Every token is drawn from the target's own distribution at its position, by a random number that
depends on the request's seed, the stream and the position alone. A tree's walk therefore picks the
token that AR decoding picks from the same logits; drafting decides only how many come at once.
Drafts, acceptance tests and draws from what remains after a rejection use streams of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.errors import NumericError, RequestError

Distribution = NDArray[np.float64]


class Stream(IntEnum):
    """Independent sequences of random numbers of one request."""

    VERIFY = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request's tokens are drawn. The defaults are greedy.

    Penalties change logits first, then comes the temperature; of the resulting distribution
    `top_k`, `top_p` (of what `top_k` leaves) and `min_p` keep a part, in this order.

    Raises:
        RequestError: a value out of range; `where` names it.
    """

    temperature: float = 0.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens whose probabilities reach this."""
    min_p: float = 0.0
    """Keep tokens at least this share as likely as the likeliest."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token of the output so far."""
    frequency_penalty: float = 0.0
    """Taken once for each time a token stands in the output so far."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens of prompt and output."""
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {
            "temperature": 0 <= self.temperature <= 2,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "presence_penalty": -2 <= self.presence_penalty <= 2,
            "frequency_penalty": -2 <= self.frequency_penalty <= 2,
            "repetition_penalty": 0.01 <= self.repetition_penalty <= 10,
            "seed": 0 <= self.seed < 2**63,
        }
        for name, fits in ranges.items():
            if not fits:
                raise RequestError(
                    f"is {getattr(self, name)}", where=name, fix="see the range in the API's docs"
                )

    @property
    def penalizes(self) -> bool:
        """Whether what came before changes logits."""
        neutral = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return neutral != (0.0, 0.0, 1.0)

    @property
    def greedy(self) -> bool:
        """Whether the plain argmax decides, as without this record."""
        return self.temperature == 0.0 and not self.penalizes


@dataclass(slots=True)
class Sampler:
    """Draws the tokens of one request, one position after the other.

    Args:
        sampling: how.
        prompt: the request's prompt, for penalties.
    """

    sampling: Sampling
    prompt: Sequence[int]
    output: list[int] = field(default_factory=list)
    """Tokens taken so far; its length is the position of the next one."""

    def uniform(self, stream: Stream, position: int | None = None) -> float:
        """The stream's number in [0, 1) for a position; the next one by default."""
        place = len(self.output) if position is None else position
        generator = np.random.Philox(key=[self.sampling.seed, stream], counter=[0, 0, 0, place])
        return float(np.random.Generator(generator).random())

    def choose(self, logits: torch.Tensor) -> int:
        """Draw the next token and take it.

        Args:
            logits: [V], the target's after everything taken so far.

        Raises:
            NumericError: the row holds NaN or +inf.
        """
        row = self._penalized(logits)
        if self.sampling.temperature == 0.0:
            return self.take(int(row.argmax()))
        return self.take(draw(self._shaped(row), self.uniform(Stream.VERIFY)))

    def take(self, token: int) -> int:
        """Make a token part of the output, and return it."""
        self.output.append(token)
        return token

    def distribution(self, logits: torch.Tensor) -> Distribution:
        """float64 [V], what `choose` draws from: one token has it all at temperature 0.

        Raises:
            NumericError: the row holds NaN or +inf.
        """
        row = self._penalized(logits)
        if self.sampling.temperature == 0.0:
            single = np.zeros_like(row)
            single[row.argmax()] = 1.0
            return single
        return self._shaped(row)

    def _penalized(self, logits: torch.Tensor) -> Distribution:
        row = logits.detach().to("cpu", torch.float64).numpy().copy()
        if not np.isfinite(row.max()):
            raise NumericError(
                "holds non-finite numbers",
                where="the target's logits",
                fix="check the checkpoint and the dtype",
            )
        how = self.sampling
        if not how.penalizes:
            return row
        if how.repetition_penalty != 1.0:
            seen = np.unique(np.array([*self.prompt, *self.output], dtype=np.int64))
            factor = how.repetition_penalty
            row[seen] = np.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
        if self.output:
            made, counts = np.unique(np.array(self.output, dtype=np.int64), return_counts=True)
            row[made] -= how.presence_penalty + how.frequency_penalty * counts
        return row

    def _shaped(self, row: Distribution) -> Distribution:
        how = self.sampling
        kept = tempered(row, how.temperature)
        if 0 < how.top_k < len(kept):
            kept = _largest(kept, how.top_k)
        kept /= kept.sum()
        if how.top_p < 1.0:
            kept = _nucleus(kept, how.top_p)
        if how.min_p > 0.0:
            kept = np.where(kept >= how.min_p * kept.max(), kept, 0.0)
        return kept / kept.sum()


def tempered(scores: NDArray[np.floating], temperature: float) -> Distribution:
    """Weights float64 [n] of scores in nats at a temperature above 0; the largest is 1."""
    wide = scores.astype(np.float64)
    # Taken off first: at the smallest temperatures a quotient is infinite, and infinities leave no
    # difference.
    with np.errstate(over="ignore"):
        return np.exp((wide - wide.max()) / temperature)


def draw(distribution: Distribution, number: float) -> int:
    """The token whose stretch of the cumulative sum, in order of ids, holds `number`."""
    cumulative = np.cumsum(distribution)
    token = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
    if token < len(distribution) and distribution[token] > 0.0:
        return token
    # Rounding put the number past the last stretch.
    return int(np.flatnonzero(distribution)[-1])


def _largest(weights: Distribution, count: int) -> Distribution:
    """Zero all but the `count` largest; of equal ones the lowest ids stay."""
    threshold = np.partition(weights, -count)[-count]
    above = weights > threshold
    ties = np.flatnonzero(weights == threshold)[: count - int(above.sum())]
    above[ties] = True
    return np.where(above, weights, 0.0)


def _nucleus(probabilities: Distribution, share: float) -> Distribution:
    """Zero all but the likeliest tokens that together reach `share`; ties by lowest id."""
    # Tokens below this cannot be needed: all of them together weigh less than what is left out.
    ids = np.flatnonzero(probabilities >= (1.0 - share) / len(probabilities))
    order = ids[np.argsort(-probabilities[ids], kind="stable")]
    before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = order[before < share]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result

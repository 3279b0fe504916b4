"""Requests, and what became of each: a failed request is an outcome, never a gap."""

from enum import StrEnum

from specpilot.core.numbers import NonNegative, PositiveInt, TokenId
from specpilot.core.record import Record


class Request(Record):
    """One prompt, tokenized by the controller with the target's own chat template."""

    id: str
    """Benchmark name and index in its source, such as `gsm8k/12`."""
    benchmark: str
    prompt_token_ids: tuple[TokenId, ...]
    max_new_tokens: PositiveInt


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    LENGTH = "length"
    FAILED = "failed"


class RequestOutcome(Record):
    """What one request gave in one arm, by the controller's own clock and the returned ids."""

    request_id: str
    benchmark: str
    finish_reason: FinishReason
    output_token_ids: tuple[TokenId, ...]
    """Emitted ids, the stop token included when the output ended by it."""
    seconds: NonNegative
    """From the request being sent to its last byte."""
    seconds_to_first_token: NonNegative | None = None
    error: str | None = None
    """The failure in one line when `finish_reason` is `failed`."""

    @property
    def tokens_per_second(self) -> float:
        """Output rate; 0 for a failed request."""
        if self.finish_reason is FinishReason.FAILED or self.seconds == 0:
            return 0.0
        return len(self.output_token_ids) / self.seconds

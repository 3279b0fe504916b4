"""What became of requests: answers that no honest server gives, and requests that failed."""

from collections.abc import Sequence

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Measurement
from specpilot.core.requests import FinishReason, Request, RequestOutcome


class Tampered(EngineFailure):
    """A server answered what no honest server can answer."""


class FailedRequests(EngineFailure):
    """A server answered, and some of its answers were errors."""


def check_outcome(request: Request, outcome: RequestOutcome) -> None:
    """Refuse impossible answers.

    Raises:
        Tampered: another request's id, no token, more tokens than allowed, or an end at the limit
            before the limit. An early stop token is possible; the scorer judges it.
    """
    if (outcome.request_id, outcome.benchmark) != (request.id, request.benchmark):
        raise _tampered(request, f"was answered as {outcome.request_id}")
    if outcome.finish_reason is FinishReason.FAILED:
        return
    count = len(outcome.output_token_ids)
    if not 1 <= count <= request.max_new_tokens:
        raise _tampered(request, f"got {count} tokens of {request.max_new_tokens}")
    if outcome.finish_reason is FinishReason.LENGTH and count < request.max_new_tokens:
        raise _tampered(request, f"ended at the limit after {count} of {request.max_new_tokens}")
    if outcome.seconds <= 0:
        raise _tampered(request, "took no time")


def outcomes_of(arm: Measurement) -> tuple[RequestOutcome, ...]:
    """All outcomes of an arm, pass after pass."""
    return tuple(outcome for outcomes in arm.passes for outcome in outcomes)


def failed(outcomes: Sequence[RequestOutcome]) -> list[RequestOutcome]:
    """Those that have no answer."""
    return [outcome for outcome in outcomes if outcome.finish_reason is FinishReason.FAILED]


def require_answers(outcomes: Sequence[RequestOutcome], *, where: str, fix: str) -> None:
    """Go on only when every request was answered.

    Raises:
        FailedRequests: says how many were not, and why the first one was not.
    """
    if lost := failed(outcomes):
        raise FailedRequests(
            f"{len(lost)} of {len(outcomes)} requests failed ({lost[0].error or 'no reason'})",
            where=where,
            fix=fix,
        )


def _tampered(request: Request, what: str) -> Tampered:
    return Tampered(what, where=f"request {request.id}", fix="the server under test is refused")

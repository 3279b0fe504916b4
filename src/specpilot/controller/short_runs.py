"""Few and short requests: for checks, headroom and ceilings, never for promotion."""

from collections.abc import Sequence

from specpilot.core.requests import Request


def few_requests(requests: Sequence[Request], max_new_tokens: int) -> tuple[Request, ...]:
    """The first request of every benchmark, shortened."""
    first: dict[str, Request] = {}
    for request in requests:
        first.setdefault(request.benchmark, request)
    return tuple(
        request.model_copy(update={"max_new_tokens": min(max_new_tokens, request.max_new_tokens)})
        for request in first.values()
    )

"""The audit of large-margin events: which of them stock or the scorer itself explains.

An event is explained if stock emits the same token after the same prefix, on its own output or
when asked to continue that prefix; or if the scorer's argmax there changes with the prefill length
(paper section 3.3). Everything that is not shown to be explained counts as unexplained.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from specpilot.core.measurement import OutputScore
from specpilot.core.numbers import Count, NonNegative, TokenId
from specpilot.core.record import Record
from specpilot.core.requests import FinishReason, Request
from specpilot.engines.base import RunningEngine
from specpilot.forcing.outputs import ForcedOutput
from specpilot.forcing.reference import is_large
from specpilot.forcing.scorer import score_outputs

PREFILL_LENGTHS = (256, 64, 16)
"""Tokens per forward pass of the scorer's repetitions."""
LEADS = (0, 1, 8)
"""Tokens of the output that stock has to repeat before the event, so that it is met at other places
of a draft."""
MAX_AUDITED = 200
"""Events that are looked at; further ones count as unexplained."""


class Explanation(StrEnum):
    """Why an event is not held against a system."""

    STOCK_OUTPUT = "stock_output"
    STOCK_CONTINUATION = "stock_continuation"
    PREFILL_LENGTH = "prefill_length"


class LargeMarginEvent(Record):
    """One mismatch with a margin above 2 delta."""

    request_id: str
    output: Count
    """Index of the output among those forced."""
    position: Count
    """Index of the token in its output."""
    token: TokenId
    argmax: TokenId
    margin_nats: NonNegative
    ends_output: bool
    """Whether the token is a stop token: the stop decision is scored like any other."""
    explanation: Explanation | None = None


def find_events(
    scores: Sequence[OutputScore], delta_nats: float, stop_ids: frozenset[int]
) -> tuple[LargeMarginEvent, ...]:
    """All large-margin events, in the order of the outputs."""
    return tuple(
        LargeMarginEvent(
            request_id=score.request_id,
            output=index,
            position=position,
            token=token.token,
            argmax=token.argmax,
            margin_nats=token.margin_nats,
            ends_output=token.token in stop_ids,
        )
        for index, score in enumerate(scores)
        for position, token in enumerate(score.tokens)
        if is_large(token, delta_nats)
    )


async def audit_events(
    events: Sequence[LargeMarginEvent],
    outputs: Sequence[ForcedOutput],
    scorer: RunningEngine,
    stock_outputs: Iterable[ForcedOutput] = (),
) -> tuple[LargeMarginEvent, ...]:
    """The events with their explanations, in the same order.

    Args:
        outputs: the forced outputs that `events` index.
        scorer: a running stock server, which both scores and continues prefixes.
        stock_outputs: what stock emitted on the same requests.
    """
    own = _stock_paths(stock_outputs)
    shifting: dict[int, frozenset[int]] = {}
    audited = []
    for number, event in enumerate(events):
        explanation = None
        if number < MAX_AUDITED:
            output = outputs[event.output]
            if _on_own_path(event, output, own):
                explanation = Explanation.STOCK_OUTPUT
            elif await _continues_so(event, output, scorer):
                explanation = Explanation.STOCK_CONTINUATION
            else:
                if event.output not in shifting:
                    shifting[event.output] = await _shifting_positions(output, scorer)
                if event.position in shifting[event.output]:
                    explanation = Explanation.PREFILL_LENGTH
        audited.append(event.model_copy(update={"explanation": explanation}))
    return tuple(audited)


def _stock_paths(
    outputs: Iterable[ForcedOutput],
) -> Mapping[tuple[int, ...], list[tuple[int, ...]]]:
    paths: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for output in outputs:
        paths.setdefault(output.prompt_token_ids, []).append(output.output_token_ids)
    return paths


def _on_own_path(
    event: LargeMarginEvent,
    output: ForcedOutput,
    own: Mapping[tuple[int, ...], list[tuple[int, ...]]],
) -> bool:
    until = output.output_token_ids[: event.position + 1]
    return any(path[: len(until)] == until for path in own.get(output.prompt_token_ids, ()))


async def _continues_so(
    event: LargeMarginEvent, output: ForcedOutput, stock: RunningEngine
) -> bool:
    for lead in LEADS:
        if lead > event.position:
            break
        start = event.position - lead
        ids = output.output_token_ids
        request = Request(
            id=f"{output.request_id}/audit",
            benchmark="audit",
            prompt_token_ids=(*output.prompt_token_ids, *ids[:start]),
            max_new_tokens=lead + 1,
        )
        outcome = await stock.generate(request)
        wanted = ids[start : event.position + 1]
        if outcome.finish_reason is not FinishReason.FAILED and outcome.output_token_ids == wanted:
            return True
    return False


async def _shifting_positions(output: ForcedOutput, scorer: RunningEngine) -> frozenset[int]:
    """Positions of an output whose argmax depends on the prefill length."""
    argmaxes = []
    for length in (None, *PREFILL_LENGTHS):
        (score,) = await score_outputs(scorer, [output], length)
        argmaxes.append([token.argmax for token in score.tokens])
    return frozenset(
        position
        for position, found in enumerate(zip(*argmaxes, strict=True))
        if len(set(found)) > 1
    )

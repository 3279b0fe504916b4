"""Each kind of fault is refused by its rule, and honest rounding noise is not."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from pydantic import ValidationError

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Counters, OutputScore, Profile, TokenScore
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.engines.base import Recording
from specpilot.forcing.audit import Explanation, find_events
from specpilot.forcing.outputs import ForcedOutput, outputs_of
from specpilot.forcing.reference import StockReference, Tally, make_reference, round_up
from specpilot.forcing.rules import ForcingReason, ForcingResult
from specpilot.forcing.run import force_outputs, measure_reference

STOP = 1
VOCABULARY = 50
REQUESTS, LENGTH = 20, 150
REFERENCE = StockReference(
    delta_nats=0.25,
    departures=4,
    tallies=tuple(Tally(mismatches=1, tokens=LENGTH) for _ in range(REQUESTS)),
    large_margin_events=0,
)


@dataclass
class ScriptedStock:
    """A stock server with a fixed greedy path per prompt, and margins by position.

    Attributes:
        margin: margin in nats of a wrong token at a position.
        continuations: what it emits after a prefix, where that is not its greedy path.
        shifting: positions whose argmax differs at prefill length 64.
    """

    margin: Callable[[int], float] = lambda position: 3.0
    continuations: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    shifting: frozenset[int] = frozenset()

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        scores = []
        for position, token in enumerate(output):
            best = greedy(position)
            if prefill_length == 64 and position in self.shifting:
                best = token
            margin = 0.0 if best == token else self.margin(position)
            scores.append(TokenScore(token=token, argmax=best, margin_nats=margin))
        return tuple(scores)

    async def generate(self, request: Request) -> RequestOutcome:
        ids = self.continuations.get(request.prompt_token_ids, (VOCABULARY - 1,))
        return RequestOutcome(
            request_id=request.id,
            benchmark=request.benchmark,
            finish_reason=FinishReason.LENGTH,
            output_token_ids=ids[: request.max_new_tokens],
            seconds=1.0,
        )

    async def record(self, request: Request, positions: int) -> Recording:
        raise AssertionError("forcing records nothing")

    async def profile(self, request: Request) -> Profile:
        raise AssertionError("forcing profiles nothing")

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        raise AssertionError("forcing times nothing")

    async def counters(self) -> Counters:
        raise AssertionError("forcing counts nothing")

    async def flush(self) -> None:
        raise AssertionError("forcing flushes nothing")

    async def stop(self) -> None:
        return


def greedy(position: int) -> int:
    return 2 + position % 40


def emit(fault: Callable[[int, int], int | None], length: int = LENGTH) -> list[ForcedOutput]:
    """Outputs on the greedy path except where `fault(request, position)` names a token."""
    outputs = []
    for request in range(REQUESTS):
        found = [fault(request, position) for position in range(length)]
        ids = tuple(
            greedy(position) if token is None else token for position, token in enumerate(found)
        )
        outputs.append(
            ForcedOutput(
                request_id=f"own/{request}",
                prompt_token_ids=(5, request),
                output_token_ids=ids,
                max_new_tokens=length,
            )
        )
    return outputs


def force(
    outputs: Sequence[ForcedOutput],
    stock: ScriptedStock | None = None,
    reference: StockReference = REFERENCE,
    **more: object,
) -> ForcingResult:
    return asyncio.run(
        force_outputs(
            stock or ScriptedStock(),
            outputs,
            reference,
            stop_ids=frozenset({STOP}),
            **more,  # type: ignore[arg-type]
        )
    )


def test_a_faithful_system_is_accepted() -> None:
    result = force(emit(lambda request, position: None))
    assert result.accepted
    assert (result.mismatches, result.large_margin_events, result.reasons) == (0, 0, ())
    assert result.tokens == REQUESTS * LENGTH


def test_near_ties_at_stocks_rate_are_accepted() -> None:
    random = np.random.default_rng(1)
    ties = random.random((REQUESTS, LENGTH)) < 0.008
    result = force(
        emit(lambda request, position: 45 if ties[request, position] else None),
        ScriptedStock(margin=lambda position: 0.1),
    )
    assert result.accepted
    assert result.mismatches == ties.sum() > 0
    assert result.large_margin_events == 0


def test_a_logit_bias_after_n_tokens_is_refused_only_where_outputs_reach_it() -> None:
    def biased(request: int, position: int) -> int | None:
        return 46 if position >= 100 and position % 7 == 0 else None

    short, long = force(emit(biased, length=100)), force(emit(biased))
    assert short.accepted
    assert not long.accepted
    assert set(long.reasons) == {ForcingReason.RATE, ForcingReason.EVENTS}
    assert long.unexplained == long.large_margin_events == REQUESTS * 7


def test_a_precision_drop_is_refused_by_the_rate_alone() -> None:
    random = np.random.default_rng(2)
    wrong = random.random((REQUESTS, LENGTH)) < 0.03
    result = force(
        emit(lambda request, position: 45 if wrong[request, position] else None),
        ScriptedStock(margin=lambda position: 0.3),
    )
    assert result.reasons == (ForcingReason.RATE,)
    assert result.large_margin_events == 0


def test_few_large_margin_events_are_refused_below_any_rate() -> None:
    def rare(request: int, position: int) -> int | None:
        return 45 if request < 5 and position == 50 else None

    result = force(emit(rare))
    assert result.reasons == (ForcingReason.EVENTS,)
    assert result.event_p_value == pytest.approx(1 / 32)
    fewer = force(emit(lambda request, position: 45 if request < 4 and position == 50 else None))
    assert fewer.accepted


def test_stocks_own_events_are_allowed_for() -> None:
    reference = REFERENCE.model_copy(update={"large_margin_events": 5})
    outputs = emit(lambda request, position: 45 if request < 5 and position == 50 else None)
    assert force(outputs, reference=reference).accepted


def test_an_output_that_ends_early_is_refused() -> None:
    outputs = emit(lambda request, position: None)
    cut = outputs[3].model_copy(update={"output_token_ids": outputs[3].output_token_ids[:90]})
    result = force([*outputs[:3], cut, *outputs[4:]])
    assert result.reasons == (ForcingReason.EARLY_END,)
    assert result.early_ends == 1


def test_the_stop_decision_is_scored_as_a_token() -> None:
    outputs = emit(lambda request, position: None)
    ids = (*outputs[3].output_token_ids[:90], STOP)
    stopped = outputs[3].model_copy(update={"output_token_ids": ids})
    changed = [*outputs[:3], stopped, *outputs[4:]]
    assert force(changed).reasons == (ForcingReason.EARLY_END,)
    assert force(changed, ScriptedStock(margin=lambda position: 0.1)).accepted
    prefix = (*stopped.prompt_token_ids, *ids[:90])
    assert force(changed, ScriptedStock(continuations={prefix: (STOP,)})).accepted


@pytest.mark.parametrize("lead", [0, 1, 8])
def test_what_stock_does_after_the_same_prefix_explains_an_event(lead: int) -> None:
    outputs = emit(lambda request, position: 45 if request < 8 and position == 50 else None)
    continuations = {}
    for output in outputs[:8]:
        start = 50 - lead
        prefix = (*output.prompt_token_ids, *output.output_token_ids[:start])
        continuations[prefix] = output.output_token_ids[start:]
    result = force(outputs, ScriptedStock(continuations=continuations))
    assert result.accepted
    assert result.large_margin_events == 8
    assert result.unexplained == 0
    assert {event.explanation for event in result.events} == {Explanation.STOCK_CONTINUATION}


def test_stocks_own_output_explains_an_event_only_on_the_same_prefix() -> None:
    outputs = emit(lambda request, position: 45 if request < 8 and position == 50 else None)
    same = force(outputs, stock_outputs=outputs[:8])
    assert same.accepted
    assert {event.explanation for event in same.events} == {Explanation.STOCK_OUTPUT}
    elsewhere = [
        output.model_copy(
            update={"output_token_ids": (47, *output.output_token_ids[1:])},
        )
        for output in outputs[:8]
    ]
    assert not force(outputs, stock_outputs=elsewhere).accepted


def test_an_argmax_that_changes_with_the_prefill_length_explains_an_event() -> None:
    outputs = emit(lambda request, position: 45 if request < 8 and position == 50 else None)
    result = force(outputs, ScriptedStock(shifting=frozenset({50})))
    assert result.accepted
    assert {event.explanation for event in result.events} == {Explanation.PREFILL_LENGTH}
    assert not force(outputs, ScriptedStock(shifting=frozenset({51}))).accepted


def test_failed_requests_and_too_little_to_judge_are_refused() -> None:
    outputs = emit(lambda request, position: None)
    assert force(outputs, failed_requests=1).reasons == (ForcingReason.FAILED_REQUESTS,)
    assert force(outputs[:1]).reasons == (ForcingReason.TOO_LITTLE,)
    few = emit(lambda request, position: 45, length=1)
    assert ForcingReason.TOO_LITTLE in force(few).reasons
    assert force([]).reasons == (ForcingReason.TOO_LITTLE,)
    empty = REFERENCE.model_copy(update={"tallies": ()})
    assert ForcingReason.TOO_LITTLE in force(outputs, reference=empty).reasons


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), -0.1])
def test_a_margin_that_is_no_finite_gap_is_refused(margin: float) -> None:
    with pytest.raises(ValidationError):
        TokenScore(token=1, argmax=2, margin_nats=margin)


def test_a_scorer_that_scores_other_tokens_is_an_error() -> None:
    class Shifted(ScriptedStock):
        async def score(
            self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
        ) -> tuple[TokenScore, ...]:
            return (await super().score(prompt, output, prefill_length))[1:]

    with pytest.raises(EngineFailure, match="scored 149 tokens of 150"):
        force(emit(lambda request, position: None), Shifted())


def score_of(name: str, *tokens: tuple[int, int, float]) -> OutputScore:
    return OutputScore(
        request_id=name,
        tokens=tuple(TokenScore(token=t, argmax=a, margin_nats=m) for t, a, m in tokens),
    )


def test_delta_is_the_largest_first_departure_rounded_up() -> None:
    stock = [
        score_of("a", (1, 1, 0), (2, 3, 0.3), (9, 4, 7.0)),
        score_of("b", (1, 1, 0), (5, 5, 0)),
        score_of("c", (1, 1, 0)),
    ]
    autoregressive = [
        score_of("a", (1, 1, 0), (3, 3, 0), (4, 4, 0)),
        score_of("b", (1, 1, 0), (6, 5, 0.26)),
        score_of("c", (1, 1, 0)),
    ]
    reference = make_reference(stock, autoregressive)
    assert reference.departures == 2
    assert reference.delta_nats == 0.375
    # 7.0 nats came after the departure and is an event of stock's own.
    assert reference.large_margin_events == 1
    assert reference.mismatch_rate == pytest.approx(2 / 6)


@pytest.mark.parametrize(
    ("margin", "delta"), [(0.0, 0.125), (0.125, 0.125), (0.1251, 0.25), (1.0, 1.0), (2.01, 2.125)]
)
def test_rounding_up_to_an_eighth(margin: float, delta: float) -> None:
    assert round_up(margin) == delta


def test_twice_delta_itself_is_no_event() -> None:
    scores = [score_of("a", (2, 3, 0.5), (2, 3, 0.500001), (3, 3, 0))]
    events = find_events(scores, 0.25, frozenset({2}))
    assert [(event.position, event.ends_output) for event in events] == [(1, True)]


def test_the_reference_is_measured_on_the_scorer() -> None:
    outputs = emit(lambda request, position: 45 if position == 7 else None)
    clean = emit(lambda request, position: None)
    stock = ScriptedStock(margin=lambda position: 0.2)
    reference = asyncio.run(measure_reference(stock, outputs, clean))
    assert (reference.departures, reference.delta_nats) == (REQUESTS, 0.25)
    assert reference.mismatch_rate == pytest.approx(1 / LENGTH)


def test_outputs_of_a_run_are_distinct_and_leave_failures_out() -> None:
    request = Request(id="a/0", benchmark="a", prompt_token_ids=(1,), max_new_tokens=4)

    def outcome(reason: FinishReason, *ids: int) -> RequestOutcome:
        return RequestOutcome(
            request_id="a/0",
            benchmark="a",
            finish_reason=reason,
            output_token_ids=ids,
            seconds=1.0,
        )

    length, failed = FinishReason.LENGTH, FinishReason.FAILED
    played = [outcome(length, 1, 2), outcome(length, 1, 2), outcome(length, 3), outcome(failed)]
    assert [o.output_token_ids for o in outputs_of([request], played)] == [(1, 2), (3,)]

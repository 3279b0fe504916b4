"""Stops, limits, counters and reuse of one engine."""

import logging

import numpy as np
import pytest
import torch

from specengine.decoding.counters import EngineCounters
from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.errors import NumericError, OptionError, RequestError
from specengine.lattice import Lattice

PROMPT = np.random.default_rng(5).integers(3, 61, 11).tolist()
FAMILY = "qwen3_5"


@pytest.fixture(scope="module")
def text(make_target, run_request):
    return PROMPT + run_request(Engine(make_target(FAMILY), None), PROMPT, 40, ignore_eos=True)


@pytest.fixture
def engine_that_stops_at(make_target, knowing_drafter, text):
    def make(stop_ids, options=None, rho=1.0):
        target = make_target(FAMILY, taps=(0,), stops=stop_ids)
        return Engine(target, knowing_drafter(text, target, rho), options or EngineOptions())

    return make


@pytest.mark.parametrize("place", range(12))
def test_a_stop_token_cuts_the_accepted_block(place, engine_that_stops_at, text, run_request):
    output = text[11:]
    stop = output[place]
    first = output.index(stop)
    engine = engine_that_stops_at([stop])
    session = engine.start(PROMPT, 40)
    emitted = []
    while session.finish_reason is None:
        emitted += session.step()
    assert emitted == output[: first + 1]
    assert session.finish_reason == "stop"
    assert engine.counters.emitted_tokens == first
    assert session.step() == []


def test_ignore_eos_goes_on(engine_that_stops_at, text, run_request):
    engine = engine_that_stops_at([text[14]])
    assert run_request(engine, PROMPT, 20, ignore_eos=True) == text[11:31]


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_limit_is_never_passed(limit, engine_that_stops_at, text):
    for options in (EngineOptions(), EngineOptions(tree="best_first", nodes=16)):
        engine = engine_that_stops_at([60_000], options)
        session = engine.start(PROMPT, limit)
        emitted = []
        while session.finish_reason is None:
            emitted += session.step()
        assert emitted == text[11 : 11 + limit]
        assert session.finish_reason == "length"


def test_stop_beats_length(engine_that_stops_at, text):
    output = text[11:]
    place = next(i for i in range(3, 20) if output[i] not in output[:i])
    engine = engine_that_stops_at([output[place]])
    session = engine.start(PROMPT, place + 1)
    while session.finish_reason is None:
        session.step()
    assert session.finish_reason == "stop"


def test_halt_sees_tokens_in_order_and_ends_the_request(engine_that_stops_at, text):
    seen = []

    def halt(token):
        seen.append(token)
        return len(seen) == 6

    engine = engine_that_stops_at([])
    session = engine.start(PROMPT, 40, halt=halt)
    emitted = []
    while session.finish_reason is None:
        emitted += session.step()
    assert emitted == seen == text[11:17]
    assert session.finish_reason == "stop"


def test_interleaved_sessions_do_not_mix(make_target, knowing_drafter, run_request):
    target = make_target(FAMILY)
    prompts = [PROMPT, PROMPT[::-1], PROMPT[:3]]
    alone = [run_request(Engine(target, None), p, 15, ignore_eos=True) for p in prompts]
    engine = Engine(target, None, slots=3)
    sessions = [engine.start(p, 15, ignore_eos=True) for p in prompts]
    outputs = [[], [], []]
    while any(s.finish_reason is None for s in sessions):
        for output, session in zip(outputs, sessions, strict=True):
            output += session.step()
    assert outputs == alone


def test_memory_is_reused_between_requests(make_target, run_request):
    target = make_target("llama")
    made = []
    new_cache = target.new_cache
    target.new_cache = lambda capacity: made.append(capacity) or new_cache(capacity)
    engine = Engine(target, None)
    for limit in (5, 30, 8):
        run_request(engine, PROMPT, limit, ignore_eos=True)
    engine.score(PROMPT, PROMPT)
    assert made == [256]
    engine.flush()
    run_request(engine, PROMPT, 5, ignore_eos=True)
    assert made == [256, 256]


def test_a_closed_session_gives_its_slot_back(make_target):
    engine = Engine(make_target("llama"), None)
    session = engine.start(PROMPT, 20)
    session.step()
    session.close()
    session.close()
    assert session.step() == []
    assert len(engine._pool._idle) == 1


def test_flush_zeroes_the_counters_in_place(engine_that_stops_at, run_request):
    engine = engine_that_stops_at([])
    run_request(engine, PROMPT, 20)
    assert engine.counters.steps and engine.counters.seconds["verify"] > 0
    engine.flush()
    counters = engine.counters.snapshot()
    assert counters["steps"] == counters["emitted_tokens"] == 0
    assert not any(counters["activations"].values()) and not any(counters["seconds"].values())
    run_request(engine, PROMPT, 20)
    assert engine.counters.steps


def test_drafted_and_verified_rows_are_counted(engine_that_stops_at, run_request):
    engine = engine_that_stops_at([], EngineOptions(tree="best_first", nodes=5), rho=0.0)
    run_request(engine, PROMPT, 20)
    counters = engine.counters
    assert counters.verified_rows == counters.drafted_tokens + counters.steps
    # The last steps may hold fewer rows: no token below the limit is drafted.
    assert counters.verified_rows > 4 * (counters.steps - 2)


def test_a_drafter_that_is_never_right_is_reported_once(make_target, run_request, caplog):
    target = make_target("llama", taps=(0,))
    plain = Engine(target, None)
    output = run_request(plain, PROMPT, 70, ignore_eos=True)
    assert plain.counters.events["never_accepted"] == 0
    never = next(token for token in range(61) if token not in output)

    class State:
        length = 0

    class Stubborn:
        kind, taps, trained_positions = "dflash2", (0,), 2

        def new_state(self, capacity):
            return State()

        def extend(self, state, features, tokens):
            state.length += len(features)

        def draft(self, state, anchor, positions):
            return Lattice(
                np.full((positions, 1), never), np.zeros((positions, 1, 1), dtype=np.float32)
            )

    engine = Engine(target, Stubborn())
    reported = []
    with caplog.at_level(logging.WARNING, "specengine"):
        session = engine.start(PROMPT, 70, ignore_eos=True)
        emitted = []
        while session.finish_reason is None:
            emitted += session.step()
            reported.append(engine.counters.events["never_accepted"])
    assert emitted == output
    # The first emission is the prefill's, which drafts nothing.
    assert reported == [0] * 50 + [1] * 20
    assert len([r for r in caplog.records if "none of its tokens" in r.message]) == 1


def test_a_drafter_that_is_right_now_and_then_is_not_reported():
    counters = EngineCounters()
    for _ in range(4):
        for accepted in [0] * 49 + [1]:
            counters.watch_acceptance(accepted)
    assert counters.events["never_accepted"] == 0


def test_non_finite_logits_fail_the_request_and_nothing_else(make_target, run_request):
    target = make_target("llama")
    engine = Engine(target, None)
    clean = run_request(engine, PROMPT, 10, ignore_eos=True)
    head = target.logits
    for poison in (float("nan"), float("inf")):
        session = engine.start(PROMPT, 10, ignore_eos=True)
        session.step()
        target.logits = lambda hidden, value=poison: head(hidden).index_fill(
            1, torch.tensor([3]), value
        )
        with pytest.raises(NumericError, match="the target's logits"):
            session.step()
        session.close()
        target.logits = head
        assert run_request(engine, PROMPT, 10, ignore_eos=True) == clean


@pytest.mark.parametrize(
    ("prompt", "limit", "field"),
    [
        ([], 4, "prompt"),
        ([61], 4, "prompt"),
        ([3, -1], 4, "prompt"),
        ([3] * 256, 4, "prompt"),
        ([3] * 250, 7, "max_tokens"),
        ([3], 0, "max_tokens"),
    ],
)
def test_requests_that_do_not_fit_name_their_field(make_target, prompt, limit, field):
    engine = Engine(make_target("llama"), None)
    with pytest.raises(RequestError) as caught:
        engine.start(prompt, limit)
    assert caught.value.where == field


def test_a_request_may_fill_every_position(make_target, run_request):
    engine = Engine(make_target("llama"), None)
    assert len(run_request(engine, [3] * 246, 10, ignore_eos=True)) == 10


@pytest.mark.parametrize("end", [247, 248])
@pytest.mark.parametrize("tree", ["chain", "best_first"])
def test_the_rows_of_a_last_wide_tree_have_room(
    make_target, random_drafter, run_request, tree, end
):
    # Eight slots pad every request, so memory for `end` alone would end at a multiple of 256.
    target = make_target("llama", taps=(0,))
    options = EngineOptions(tree=tree, positions=31, nodes=32)
    engine = Engine(target, random_drafter(target), options)
    assert len(run_request(engine, [3] * (end - 4), 4, ignore_eos=True)) == 4


def test_a_budget_without_room_for_a_draft_is_refused(make_target, random_drafter):
    target = make_target("llama", taps=(0,))
    with pytest.raises(OptionError, match="nodes"):
        Engine(target, random_drafter(target), EngineOptions(nodes=1))

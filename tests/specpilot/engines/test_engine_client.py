"""The client believes ids and its own clock; a lying server gets a failed outcome or an error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from scripted_server import (
    COUNTERS,
    REQUEST,
    Handler,
    archive,
    chunk,
    generate,
    make_arrays,
    meet,
    streamed,
    text_handler,
    usage,
    whole,
)

from specpilot.core.errors import EngineFailure
from specpilot.core.requests import FinishReason


@pytest.mark.parametrize(
    ("ids", "reason", "finish"),
    [
        ([5, 6, 7, 8], "length", FinishReason.LENGTH),
        ([5, 9], "stop", FinishReason.STOP),
        ([5, 6, 7, 9], "stop", FinishReason.STOP),
    ],
)
def test_honest_outputs_are_taken(
    tmp_path: Path, ids: list[int], reason: str, finish: FinishReason
) -> None:
    for stream in (False, True):
        events = [chunk(*ids[:1]), chunk(*ids[1:], reason=reason), usage(len(ids))]
        handler = streamed(events) if stream else whole(ids, reason, len(ids))
        outcome = generate(tmp_path / str(stream), handler, stream=stream)
        assert outcome.error is None
        assert outcome.finish_reason is finish
        assert list(outcome.output_token_ids) == ids
        assert outcome.seconds > 0
        assert (outcome.seconds_to_first_token is not None) == stream


@pytest.mark.parametrize(
    ("ids", "reason", "count", "message"),
    [
        ([5, 6, 7, 8], "length", 3, "usage says 3 tokens, 4 ids came"),
        ([5, 6, 7, 8], "length", None, "usage says None"),
        ([5, 6], "stop", 2, "ended early: 2 of 4 tokens and no stop token"),
        ([5, 6], "length", 2, "ended early"),
        ([5, 9], "length", 2, "finish reason is 'length', its ids say 'stop'"),
        ([5, 6, 7, 8], "stop", 4, "finish reason is 'stop', its ids say 'length'"),
        ([5, 6, 7, 8], None, 4, "finish reason is None"),
        ([9, 6, 7, 8], "length", 4, "token 0 is a stop token"),
        ([5, 6, 7, 8, 8], "length", 5, "5 tokens were emitted, 4 were allowed"),
        ([5, 100], "stop", 2, "token id 100 is outside"),
        ([5, -1], "stop", 2, "token id -1 is outside"),
        ([], "stop", 0, "no token was emitted"),
    ],
)
def test_lies_about_an_output_make_it_fail(
    tmp_path: Path, ids: list[int], reason: str | None, count: int | None, message: str
) -> None:
    for stream in (False, True):
        events = [chunk(*ids, reason=reason), *([] if count is None else [usage(count)])]
        handler = streamed(events) if stream else whole(ids, reason, count)
        outcome = generate(tmp_path / str(stream), handler, stream=stream)
        assert outcome.finish_reason is FinishReason.FAILED
        assert outcome.tokens_per_second == 0
        assert outcome.error is not None
        assert message in outcome.error


def test_the_clock_runs_to_the_last_byte_whatever_came_early(tmp_path: Path) -> None:
    events = [chunk(5, 6, 7, 8, reason="length"), usage(4), {"choices": []}]
    outcome = generate(tmp_path, streamed(events, pause=0.1), stream=True)
    assert outcome.seconds_to_first_token is not None
    assert outcome.seconds >= 0.3 > 0.25 > outcome.seconds_to_first_token


def test_an_error_status_is_a_failed_outcome(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "queue is full"}}, status=429)

    outcome = generate(tmp_path, refuse, stream=True)
    assert outcome.finish_reason is FinishReason.FAILED
    assert outcome.error == "/v1/completions answered 429: queue is full"


@pytest.mark.parametrize(
    "handler",
    [
        streamed([chunk(5, 6, 7, 8, reason="length"), usage(4)], done=False),
        streamed([{"error": {"message": "out of memory"}}]),
        streamed([{"choices": [{"token_ids": ["5"]}]}]),
        streamed([{"choices": [{"token_ids": [True]}]}]),
        streamed([[]]),
    ],
)
def test_what_is_no_completion_is_an_engine_failure(tmp_path: Path, handler: Handler) -> None:
    with pytest.raises(EngineFailure, match="malformed completion"):
        generate(tmp_path, handler, stream=True)


def test_a_server_that_vanishes_is_an_engine_failure(tmp_path: Path) -> None:
    async def vanish(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: ")
        assert request.transport is not None
        request.transport.abort()
        return response

    with pytest.raises(EngineFailure, match="no complete answer"):
        generate(tmp_path, vanish, stream=True)


@pytest.mark.parametrize(
    "text",
    [
        '{"argmax": [1, 2], "margin_nats": [0.0, NaN]}',
        '{"argmax": [1, 2], "margin_nats": [0.0, 1e999]}',
        '{"argmax": [1, 2], "margin_nats": [0.0, -0.5]}',
        '{"argmax": [1, 2], "margin_nats": [0.5, 0.5]}',
        '{"argmax": [1, 100], "margin_nats": [0.0, 0.5]}',
        '{"argmax": [1], "margin_nats": [0.0]}',
        '{"argmax": [1, "2"], "margin_nats": [0.0, 0.5]}',
        '{"margin_nats": [0.0, 0.5]}',
        "[]",
        "nonsense",
    ],
)
def test_scores_that_are_not_finite_margins_in_range_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(EngineFailure, match="/score: malformed answer"):
        meet(tmp_path, {"/score": text_handler(text)}, lambda client: client.score([1], [1, 3]))


def test_scores_are_read(tmp_path: Path) -> None:
    handler = text_handler('{"argmax": [1, 2], "margin_nats": [0, 0.5]}')
    scores = meet(tmp_path, {"/score": handler}, lambda client: client.score([1], [1, 3]))
    assert [(s.token, s.argmax, s.margin_nats) for s in scores] == [(1, 1, 0), (3, 2, 0.5)]


@pytest.mark.parametrize(
    "changes",
    [
        {"edge": np.full((2, 4, 2, 2), np.nan, np.float32)},
        {"edge": np.zeros((2, 4, 2), np.float32)},
        {"ids": np.full((2, 4, 2), 100)},
        {"ids": np.zeros((1, 4, 2), np.int64), "edge": np.zeros((1, 4, 2, 2), np.float32)},
        {"ids": np.zeros((2, 5, 2), np.int64), "edge": np.zeros((2, 5, 2, 2), np.float32)},
        {"tokens": np.array([3.0, 4.0, 5.0])},
        {"tokens": np.array([3, None, 5])},
        {"tokens": np.array([3, 4, 5, 6, 7])},
        {"tokens": np.array([], np.int64)},
        {"ids": np.zeros((9, 4, 2), np.int64), "edge": np.zeros((9, 4, 2, 2), np.float32)},
    ],
)
def test_recordings_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    handler = text_handler(archive(**make_arrays(**changes)))
    with pytest.raises(EngineFailure, match="/record: malformed answer"):
        meet(tmp_path, {"/record": handler}, lambda client: client.record(REQUEST, 4))


def test_recordings_are_read(tmp_path: Path) -> None:
    # An impossible child has a log-probability of minus infinity.
    edge = np.full((2, 4, 2, 2), -np.inf, np.float32)
    handler = text_handler(archive(**make_arrays(edge=edge)))
    recording = meet(tmp_path, {"/record": handler}, lambda client: client.record(REQUEST, 4))
    assert recording.tokens.tolist() == [3, 4, 5]
    with pytest.raises(EngineFailure, match="not an archive"):
        meet(
            tmp_path / "cut",
            {"/record": text_handler(archive(**make_arrays())[:200])},
            lambda client: client.record(REQUEST, 4),
        )


@pytest.mark.parametrize(
    ("answer", "counters", "confirmed"),
    [
        ({"flushed": True, "running": 0}, COUNTERS, True),
        ({"flushed": False, "running": 0}, COUNTERS, False),
        ({"flushed": True, "running": 1}, COUNTERS, False),
        ({"flushed": True, "running": 0}, COUNTERS | {"steps": 3}, False),
        ({}, COUNTERS, False),
    ],
)
def test_a_flush_is_verified(
    tmp_path: Path, answer: dict[str, Any], counters: dict[str, Any], confirmed: bool
) -> None:
    routes = {
        "/flush": text_handler(json.dumps(answer)),
        "/counters": text_handler(json.dumps(counters)),
    }
    if confirmed:
        meet(tmp_path, routes, lambda client: client.flush())
        return
    with pytest.raises(EngineFailure, match="did not confirm an empty state"):
        meet(tmp_path, routes, lambda client: client.flush())

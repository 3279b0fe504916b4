"""Answers made to crash or hang whoever reads them: an engine failure or a failed outcome each."""

import io
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from scripted_server import (
    COUNTERS,
    REQUEST,
    archive,
    generate,
    make_arrays,
    meet,
    text_handler,
)

from specpilot.core.errors import EngineFailure, WorkloadError
from specpilot.core.requests import FinishReason
from specpilot.costmodel.replay_files import read_recordings
from specpilot.engines import client as client_module
from specpilot.engines.completions import parse_completion

DEEP = "[" * 100_000 + "]" * 100_000


def test_nesting_without_end_is_an_engine_failure(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match=r"malformed completion.*RecursionError"):
        generate(tmp_path, text_handler(f"data: {DEEP}\n"), stream=True)
    with pytest.raises(EngineFailure, match="malformed completion"):
        generate(tmp_path / "whole", text_handler(DEEP), stream=False)
    with pytest.raises(EngineFailure, match="/counters: malformed answer"):
        meet(tmp_path / "json", {"/counters": text_handler(DEEP)}, lambda client: client.counters())


def test_an_error_answer_is_one_printable_line_whatever_it_says(tmp_path: Path) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=500, body=bodies.pop())

    bodies = [
        DEEP.encode(),
        b'{"error": {"message": "two\\nlines \\ud800 \\u001b[2J"}}',
        b'{"error": {"message": ' + b"[" * 50 + b"]" * 50 + b"}}",
        b'{"error": {"message": "' + b"x" * 10**6 + b'"}}',
    ]
    for number in range(len(bodies)):
        outcome = generate(tmp_path / str(number), refuse, stream=True)
        assert outcome.finish_reason is FinishReason.FAILED
        assert outcome.error is not None
        assert outcome.error.isprintable() and len(outcome.error) < 400


@pytest.mark.parametrize(
    "usage_says", ['"\\ud800"', "1" + "0" * 400, "[[]]", '{"a": 1}', "true"], ids=range(5)
)
def test_odd_usage_is_a_failed_outcome_with_a_printable_line(
    tmp_path: Path, usage_says: str
) -> None:
    body = (
        '{"choices": [{"token_ids": [5, 9], "finish_reason": "stop"}], '
        f'"usage": {{"completion_tokens": {usage_says}}}}}'
    )
    outcome = generate(tmp_path, text_handler(body), stream=False)
    assert outcome.finish_reason is FinishReason.FAILED
    assert outcome.error is not None and outcome.error.startswith("usage says ")
    assert outcome.error.isprintable() and len(outcome.error) < 120


def test_an_error_in_a_stream_is_told_in_a_printable_line(tmp_path: Path) -> None:
    event = b'data: {"error": {"message": "half a pair: \\ud800"}}\n'
    with pytest.raises(EngineFailure, match="half a pair") as caught:
        generate(tmp_path, text_handler(event), stream=True)
    assert str(caught.value).isprintable()


def test_a_token_of_four_hundred_digits_stays_out_of_the_outcome(tmp_path: Path) -> None:
    body = (
        f'{{"choices": [{{"token_ids": [5, {10**400}], "finish_reason": "stop"}}], '
        '"usage": {"completion_tokens": 2}}'
    )
    outcome = generate(tmp_path, text_handler(body), stream=False)
    assert outcome.error is not None and "outside the vocabulary" in outcome.error
    assert outcome.output_token_ids == (5,)


def test_a_long_line_in_many_parts_is_read_in_time(tmp_path: Path) -> None:
    chunks = tuple((0.0, b"x" * 1000) for _ in range(100_000))
    with pytest.raises(EngineFailure, match="no end mark"):
        parse_completion(chunks, stream=True)


@pytest.mark.parametrize(
    ("path", "action", "text"),
    [
        ("/counters", "counters", json.dumps(COUNTERS | {"seconds": {"a": 10**400}})),
        ("/counters", "counters", json.dumps(COUNTERS | {"steps": -1})),
        ("/counters", "counters", json.dumps(COUNTERS).replace('"steps": 0', '"steps": 1e400')),
        ("/counters", "counters", json.dumps(COUNTERS | {"\ud800": 1})),
        ("/profile", "profile", '{"steps": 1, "seconds_per_step": 1e400, "by_class": {}}'),
        ("/profile", "profile", '{"steps": 0, "seconds_per_step": 1.0, "by_class": {}}'),
        ("/step-times", "step_times", '{"seconds_per_step": {"8": 1e400}}'),
        ("/step-times", "step_times", '{"seconds_per_step": {"8": -0.5}}'),
    ],
)
def test_absurd_numbers_are_malformed_answers(
    tmp_path: Path, path: str, action: str, text: str
) -> None:
    asked: dict[str, tuple[Any, ...]] = {
        "counters": (),
        "profile": (REQUEST,),
        "step_times": (REQUEST, 4, (8,)),
    }
    with pytest.raises(EngineFailure, match=f"{path}: malformed answer") as caught:
        meet(
            tmp_path,
            {path: text_handler(text)},
            lambda client: getattr(client, action)(*asked[action]),
        )
    assert str(caught.value).isprintable()


def test_an_archive_that_unpacks_to_more_than_an_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 1 << 20)
    stream = io.BytesIO()
    np.savez_compressed(stream, **make_arrays(edge=np.zeros(10**6)))
    with pytest.raises(EngineFailure, match="bytes when unpacked"):
        meet(
            tmp_path,
            {"/record": text_handler(stream.getvalue())},
            lambda client: client.record(REQUEST, 4),
        )


def promising(folder: Path, sizes: dict[str, int]) -> bytes:
    """Arrays whose headers announce so many numbers of eight bytes, and that hold none."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name, size in sizes.items():
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "<i8", "fortran_order": False, "shape": (size,)}
            )
            written.writestr(f"{name}.npy", header.getvalue())
    return stream.getvalue()


@pytest.mark.parametrize("size", [200, 10**9, 10**15, 10**30])
def test_arrays_are_believed_only_as_far_as_they_come(tmp_path: Path, size: int) -> None:
    raw = promising(tmp_path, {"tokens": size, "ids": size, "edge": size})
    (tmp_path / "x.npz").write_bytes(raw)
    tracemalloc.start()

    with pytest.raises(EngineFailure, match=rf"an array of {8 * size} bytes in"):
        meet(
            tmp_path,
            {"/record": text_handler(raw)},
            lambda client: client.record(REQUEST, 4),
        )
    with pytest.raises(WorkloadError, match=rf"an array of {8 * size} bytes in"):
        read_recordings(tmp_path / "x.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("score", "fits"), [(-1e300, True), (1e300, False), (np.nan, False)])
def test_scores_beyond_single_precision_warn_nobody(
    tmp_path: Path, score: float, fits: bool
) -> None:
    raw = archive(**make_arrays(edge=np.full((2, 4, 2, 2), score)))
    record = (tmp_path, {"/record": text_handler(raw)}, lambda client: client.record(REQUEST, 4))
    if fits:
        assert (meet(*record).edge == -np.inf).all()
        return
    with pytest.raises(EngineFailure, match="NaN or \\+infinity"):
        meet(*record)

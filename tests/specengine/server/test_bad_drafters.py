"""What a broken drafter costs: one clear error or one warning, never the text of a request."""

import asyncio
import logging

import numpy as np
import pytest

from specengine.decoding.options import EngineOptions
from specengine.lattice import Lattice

BODY = {"prompt": [3, 9, 17], "max_tokens": 60, "ignore_eos": True, "return_token_ids": True}
TREE = EngineOptions(tree="best_first", nodes=8)


def _lattice(ids: list[list[int]], score: float = -1.0) -> Lattice:
    width = len(ids[0]) if ids else 2
    array = np.array(ids, dtype=np.int64).reshape(len(ids), width)
    return Lattice(array, np.full((len(ids), width, width), score, dtype=np.float32))


async def _text(served) -> list[int]:
    answer = await served.post("/v1/completions", BODY)
    return answer["choices"][0]["token_ids"]


def _ar_text(serving) -> list[int]:
    async def play() -> list[int]:
        async with serving() as served:
            return await _text(served)

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("lattice", "message"),
    [
        (_lattice([[4, 5]], float("nan")), "lattice: holds non-finite scores"),
        (_lattice([[4, 5]], float("inf")), "lattice: holds non-finite scores"),
        (_lattice([[4, 5], [6, 6]]), "lattice: names a candidate twice in one position"),
        (_lattice([]), "lattice: is empty"),
        (_lattice([[], []]), "lattice: is empty"),
        (Lattice(np.zeros((2, 1), dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)), "shape"),
    ],
    ids=["nan", "infinite", "duplicates", "no positions", "no candidates", "ragged"],
)
@pytest.mark.parametrize("options", [TREE, None], ids=["tree", "chain"])
def test_a_broken_draft_fails_its_request_alone(
    serving, copier, monkeypatch, lattice, message, options
):
    wanted = _ar_text(serving)

    async def play():
        async with serving(drafter=copier, options=options) as served:
            sound = copier.draft
            monkeypatch.setattr(copier, "draft", lambda *_: lattice)
            answer = await served.post("/v1/completions", BODY, status=500)
            assert answer["error"]["code"] == "NumericError"
            assert message in answer["error"]["message"]
            monkeypatch.setattr(copier, "draft", sound)
            assert await _text(served) == wanted

    asyncio.run(play())


def test_a_drafter_that_is_never_right_is_reported_within_fifty_steps(
    serving, copier, monkeypatch, caplog
):
    wanted = _ar_text(serving)
    wrong = next(token for token in range(61) if token not in wanted)

    async def play():
        async with serving(drafter=copier, options=TREE) as served:
            monkeypatch.setattr(
                copier, "draft", lambda state, anchor, count: _lattice([[wrong]] * count, 0.0)
            )
            with caplog.at_level(logging.WARNING, logger="specengine"):
                assert await _text(served) == wanted
            counters = await served.get("/counters")
            assert 50 <= counters["steps"] < 60
            assert counters["events"] == {"never_accepted": 1}
            assert "none of its tokens was accepted in 50 steps" in caplog.text

    asyncio.run(play())


def test_more_nodes_than_a_lattice_holds_are_as_many_as_it_holds(serving, copier):
    wanted = _ar_text(serving)

    async def play():
        options = EngineOptions(tree="best_first", nodes=64, positions=3)
        async with serving(drafter=copier, options=options) as served:
            copier.texts = [[*BODY["prompt"], *wanted]]
            assert await _text(served) == wanted
            counters = await served.get("/counters")
            assert 0 < counters["drafted_tokens"] <= 3 * counters["steps"]

    asyncio.run(play())

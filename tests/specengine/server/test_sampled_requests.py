"""Sampled requests over HTTP: the engine's own draws, repeated by a seed."""

import asyncio

from specengine.decoding.engine import Engine
from specengine.decoding.sampling import Sampling

PROMPT = [3, 9, 17, 4, 28]
BODY = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
DRAWN = {
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.01,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "seed": 5,
}


def _alone(served, sampling):
    session = Engine(served.service.engine.target, None).start(
        PROMPT, 24, ignore_eos=True, sampling=sampling
    )
    output = []
    while session.finish_reason is None:
        output += session.step()
    return output


def _ids(answer):
    return answer["choices"][0]["token_ids"]


def test_every_field_reaches_the_draws(serving, copier):
    async def play():
        async with serving(drafter=copier) as served:
            want = _alone(served, Sampling(**DRAWN))
            copier.texts = [PROMPT + want]
            assert _ids(await served.post("/v1/completions", BODY | DRAWN)) == want
            events = await served.events("/v1/completions", BODY | DRAWN)
            assert [t for e in events for t in e["choices"][0]["token_ids"]] == want
            for name in DRAWN.keys() - {"min_p", "top_k", "top_p"}:
                body = {key: value for key, value in DRAWN.items() if key != name}
                other = DRAWN | {"seed": 6} if name == "seed" else body
                assert _ids(await served.post("/v1/completions", BODY | other)) != want
            few = BODY | DRAWN | {"top_k": 1}
            assert _ids(await served.post("/v1/completions", few)) != want

    asyncio.run(play())


def test_without_a_seed_texts_differ_and_without_a_temperature_they_do_not(serving):
    async def play():
        async with serving() as served:
            drawn = [
                tuple(_ids(await served.post("/v1/completions", BODY | {"temperature": 1.0})))
                for _ in range(4)
            ]
            assert len(set(drawn)) == 4
            greedy = [
                tuple(_ids(await served.post("/v1/completions", BODY | extra)))
                for extra in ({}, {"temperature": 0}, {"top_k": -1, "seed": 3, "top_p": 0.5})
            ]
            assert len(set(greedy)) == 1

    asyncio.run(play())

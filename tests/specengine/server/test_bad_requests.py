"""Requests that are refused: 400, and the message and `param` name the field."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from specengine.errors import RequestError
from specengine.server.protocol import (
    ChatRequest,
    CompletionRequest,
    ScoreRequest,
    StepTimesRequest,
)
from specengine.server.text import TextCodec

BASE = {"prompt": [3, 4], "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
TEXT = {"type": "text", "text": "a"}
NEST = json.loads("[" * 500 + "]" * 500)

WRONG = [
    ("/v1/completions", {"max_tokens": 2}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": ""}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": []}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": ["a", "b"]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [[3], [4]]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [3, True]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [3.5]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": {"a": 1}}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [61]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [-1]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [3] * 256}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [3] * 200, "max_tokens": 57}, "max_tokens"),
    ("/v1/completions", {**BASE, "max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {**BASE, "max_tokens": "2"}, "max_tokens"),
    ("/v1/completions", {**BASE, "max_tokens": 2.5}, "max_tokens"),
    ("/v1/completions", {**BASE, "temperature": 2.5}, "temperature"),
    ("/v1/completions", {**BASE, "temperature": -1}, "temperature"),
    ("/v1/completions", {**BASE, "temperature": "0"}, "temperature"),
    ("/v1/completions", {**BASE, "top_p": 0}, "top_p"),
    ("/v1/completions", {**BASE, "n": 2}, "n"),
    ("/v1/completions", {**BASE, "n": True}, "n"),
    ("/v1/completions", {**BASE, "logprobs": 3}, "logprobs"),
    ("/v1/completions", {**BASE, "logprobs": 0}, "logprobs"),
    ("/v1/completions", {**BASE, "echo": True}, "echo"),
    ("/v1/completions", {**BASE, "top_k": 1.5}, "top_k"),
    ("/v1/completions", {**BASE, "top_k": -2}, "top_k"),
    ("/v1/completions", {**BASE, "min_p": 2}, "min_p"),
    ("/v1/completions", {**BASE, "presence_penalty": 3}, "presence_penalty"),
    ("/v1/completions", {**BASE, "repetition_penalty": 0}, "repetition_penalty"),
    ("/v1/completions", {**BASE, "seed": -1}, "seed"),
    ("/v1/completions", {**BASE, "seed": 2**63}, "seed"),
    ("/v1/completions", {**BASE, "logit_bias": {"3": 100}}, "logit_bias"),
    ("/v1/completions", {**BASE, "stop_token_ids": [5]}, "stop_token_ids"),
    ("/v1/completions", {**BASE, "stop": 5}, "stop"),
    ("/v1/completions", {**BASE, "stop": ["a", 5]}, "stop"),
    ("/v1/completions", {**BASE, "stop": [""]}, "stop"),
    ("/v1/completions", {**BASE, "stream": "yes"}, "stream"),
    ("/v1/completions", {**BASE, "stream_options": {"usage": True}}, "stream_options.usage"),
    ("/v1/completions", {**BASE, "max_token": 3}, "max_token"),
    ("/v1/completions", {**BASE, "prompt": [[3, "a"]]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [""]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": [[]]}, "prompt"),
    ("/v1/completions", {**BASE, "prompt": None}, "prompt"),
    ("/v1/chat/completions", {"max_tokens": 2}, "messages"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "low"}, "reasoning_effort"),
    ("/v1/chat/completions", {**CHAT, "messages": []}, "messages"),
    ("/v1/chat/completions", {**CHAT, "messages": [{"content": "a"}]}, "messages.0.role"),
    ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 3}, "max_completion_tokens"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools"),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_object"}},
        "response_format",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content",
    ),
    *(
        ("/v1/chat/completions", {**CHAT, name: {"type": "object"}}, name)
        for name in ("guided_json", "guided_regex", "structured_outputs", "grammar", "json_schema")
    ),
    ("/v1/completions", {**BASE, "response_format": {"type": "json_object"}}, "response_format"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [TEXT, {"type": "input_audio"}]}]},
        "messages.0.content",
    ),
    *(
        (
            "/v1/chat/completions",
            {"messages": [CHAT["messages"][0], {"role": "user", "content": "a", name: ["aGk="]}]},
            f"messages.1.{name}",
        )
        for name in ("images", "image_url", "audio", "videos")
    ),
    ("/score", {"prompt_token_ids": [3]}, "output_token_ids"),
    ("/score", {"prompt_token_ids": [], "output_token_ids": [3]}, "prompt_token_ids"),
    ("/score", {"prompt_token_ids": [3], "output_token_ids": [99]}, "output_token_ids"),
    (
        "/score",
        {"prompt_token_ids": [3], "output_token_ids": [4], "prefill_length": 0},
        "prefill_length",
    ),
    ("/score", {"prompt_token_ids": [3] * 200, "output_token_ids": [4] * 57}, "output_token_ids"),
    ("/score", {"prompt_token_ids": [3] * 256, "output_token_ids": [4]}, "prompt_token_ids"),
    *(
        (path, {"prompt_token_ids": [3] * count, "max_tokens": 60, "positions": 4, **more}, field)
        for count, field in ((200, "max_tokens"), (256, "prompt_token_ids"))
        for path, more in (("/record", {}), ("/step-times", {"nodes": [8]}))
    ),
    ("/profile", {"prompt_token_ids": [3] * 256, "max_tokens": 2}, "prompt_token_ids"),
    ("/v1/chat/completions", {"messages": [{"role": "u", "content": "a" * 256}]}, "messages"),
    (
        "/v1/chat/completions",
        {"messages": CHAT["messages"], "max_completion_tokens": 256},
        "max_completion_tokens",
    ),
    ("/v1/chat/completions", {"messages": CHAT["messages"], "max_tokens": 2**70}, "max_tokens"),
    ("/record", {"prompt_token_ids": [3], "max_tokens": 4, "positions": 65}, "positions"),
    ("/profile", {"prompt_token_ids": [3], "max_tokens": 1}, "max_tokens"),
    (
        "/step-times",
        {"prompt_token_ids": [3], "max_tokens": 4, "positions": 4, "nodes": [1]},
        "nodes.0",
    ),
    (
        "/step-times",
        {"prompt_token_ids": [3], "max_tokens": 4, "positions": 0, "nodes": [8]},
        "positions",
    ),
]


def test_wrong_fields_are_named(serving):
    async def play():
        async with serving() as served:
            for path, body, field in WRONG:
                error = (await served.post(path, body, status=400))["error"]
                assert error["param"] == field, (path, body, error)
                assert field.split(".")[0] in error["message"], (body, error)
                assert error["type"] == "invalid_request_error"
            # None of them reached the engine.
            assert served.service.engine.counters.requests == 0

    asyncio.run(play())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b"nul",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\uDBff \\udc00"}',
        b'{"prompt": "\xed\xa0\x80"}',
    ],
)
def test_bodies_that_are_no_object_are_refused(serving, raw):
    async def play():
        async with (
            serving() as served,
            served.session.post("http://engine/v1/completions", data=raw) as answer,
        ):
            assert answer.status == 400
            assert "JSON" in (await answer.json())["error"]["message"]

    asyncio.run(play())


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "a", "x": NEST}]},
        {**CHAT, "chat_template_kwargs": {"x": NEST}},
        {**CHAT, "logit_bias": NEST},
        {**CHAT, "metadata": {"x": NEST}},
    ],
)
def test_deep_bodies_are_refused_before_anything_walks_them(serving, body):
    async def play():
        async with serving() as served:
            error = (await served.post("/v1/chat/completions", body, status=400))["error"]
            assert error["message"] == "the body's JSON is nested deeper than 64 levels"

    asyncio.run(play())


@pytest.mark.parametrize("extra", [{"x" * 10**5: 1}, {"logit_bias": {"3": "x" * 10**5}}])
def test_an_error_does_not_repeat_a_whole_body(serving, extra):
    async def play():
        async with serving() as served:
            error = (await served.post("/v1/completions", BASE | extra, status=400))["error"]
            assert len(str(error)) < 500

    asyncio.run(play())


def test_null_is_absent_and_a_batch_of_one_is_its_prompt(serving):
    fields = [
        name for name in CompletionRequest.model_fields if name not in ("prompt", "max_tokens")
    ]

    async def play():
        async with serving() as served:
            plain = await served.post("/v1/completions", BASE)
            for body in (
                BASE | dict.fromkeys(fields),
                BASE | {"prompt": [[3, 4]]},
                BASE | {"prompt": ["ab"]},
            ):
                answer = await served.post("/v1/completions", body)
                assert answer["choices"] == plain["choices"], body

    asyncio.run(play())


def test_whole_pairs_and_other_encodings_are_text(serving):
    async def play():
        async with serving() as served:
            for raw in (
                b'{"prompt": "a\\ud83d\\ude42", "max_tokens": 1}',
                '\ufeff{"prompt": "a\N{SLIGHTLY SMILING FACE}", "max_tokens": 1}'.encode(),
                '{"prompt": "a", "max_tokens": 1}'.encode("utf-16"),
            ):
                async with served.session.post("http://engine/v1/completions", data=raw) as answer:
                    assert answer.status == 200, raw

    asyncio.run(play())


MANY = 50
STRANGERS = {f"x{number}": 1 for number in range(MANY)}
SCORE = {"prompt_token_ids": [3], "output_token_ids": [3]}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ScoreRequest, {**SCORE, "prompt_token_ids": ["a"] * MANY}),
        (ScoreRequest, {**SCORE, **STRANGERS}),
        (StepTimesRequest, {**SCORE, "max_tokens": 3, "positions": 3, "nodes": ["a"] * MANY}),
        (CompletionRequest, {**BASE, "stop": [1] * MANY}),
        (CompletionRequest, {**BASE, "stream_options": STRANGERS}),
        (ChatRequest, {"messages": [1] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
    ],
)
def test_a_body_full_of_mistakes_costs_no_more_than_one(model, body):
    """Millions fit into a body; noting each took minutes and gigabytes."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() < 5


def test_an_endless_name_is_not_compared_whole(serving, monkeypatch):
    compared = []

    def close_matches(word, known, n):
        compared.append(word)
        return []

    monkeypatch.setattr("specengine.server.protocol.difflib.get_close_matches", close_matches)

    async def play():
        async with serving() as served:
            error = await served.post("/v1/completions", {**BASE, "x" * 10**6: 1}, status=400)
            assert len(error["error"]["message"]) < 200

    asyncio.run(play())
    assert len(compared[0]) < 100


@pytest.mark.parametrize(
    "expression",
    ["1 / 0", "''.x.y", "'a' + 1", "2.0 ** 99999", "'%d' | format('a')", "x()", "[3] | join | x"],
)
def test_whatever_a_template_stumbles_over_is_the_requests_failure(tiny_tokenizer, expression):
    codec = TextCodec(tiny_tokenizer, "{{ " + expression + " }}", {})
    with pytest.raises(RequestError, match="chat template"):
        codec.encode_chat([{"role": "user", "content": "a"}], {})


def test_harmless_fields_change_nothing(serving):
    extra = {
        "user": "someone", "seed": 7, "top_p": 0.9, "n": 1, "logprobs": None, "echo": False,
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "best_of": 1,
        "metadata": {"a": "b"}, "suffix": None, "temperature": 0.0, "stop": None,
    }  # fmt: skip

    async def play():
        async with serving() as served:
            plain = await served.post("/v1/completions", BASE)
            with_extra = await served.post("/v1/completions", {**BASE, **extra})
            assert plain["choices"] == with_extra["choices"]

    asyncio.run(play())


def test_text_without_a_tokenizer_is_refused(serving):
    async def play():
        async with serving(tokenizer=False) as served:
            error = await served.post("/v1/completions", {**BASE, "prompt": "a"}, status=400)
            assert error["error"]["param"] == "prompt"
            answer = await served.post("/v1/completions", {**BASE, "return_token_ids": True})
            assert len(answer["choices"][0]["token_ids"]) == 2

    asyncio.run(play())


def test_record_without_a_drafter_is_refused(serving):
    async def play():
        async with serving() as served:
            body = {"prompt_token_ids": [3], "max_tokens": 4, "positions": 3}
            error = await served.post("/record", body, status=400)
            assert "drafter" in error["error"]["message"]

    asyncio.run(play())

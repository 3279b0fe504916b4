"""Every endpoint over real HTTP, on a tiny random target."""

import asyncio
import io

import numpy as np
import pytest

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.models import Target
from specengine.server.profiling import profile_request
from specpilot.core.measurement import Counters

PROMPT = [3, 9, 17, 4, 28]


def _greedy(served, prompt, limit):
    """What the engine says without a server."""
    session = Engine(served.service.engine.target, None).start(prompt, limit, True)
    output = []
    while session.finish_reason is None:
        output += session.step()
    return output


def _learn(served, copier, prompt, limit):
    output = _greedy(served, prompt, limit)
    copier.texts = [prompt + output]
    return output


def test_completions_whole_and_streamed_agree(serving, copier):
    async def play():
        async with serving(drafter=copier) as served:
            output = _learn(served, copier, PROMPT, 40)
            body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
            whole = await served.post("/v1/completions", {**body, "return_token_ids": True})
            choice = whole["choices"][0]
            assert choice["token_ids"] == output
            assert choice["finish_reason"] == "length"
            assert whole["usage"] == {
                "prompt_tokens": 5,
                "completion_tokens": 40,
                "total_tokens": 45,
                "steps": 8,
            }
            assert whole["object"] == "text_completion" and whole["model"] == "tiny"
            tokenizer = served.service.codec.tokenizer
            assert choice["text"] == tokenizer.decode(output, skip_special_tokens=True)
            events = await served.events("/v1/completions", {**body, "return_token_ids": True})
            choices = [event["choices"][0] for event in events]
            assert [len(c["token_ids"]) for c in choices][:4] == [1, 5, 5, 5]
            assert [token for c in choices for token in c["token_ids"]] == output
            assert "".join(c["text"] for c in choices) == choice["text"]
            assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
            assert events[-1]["usage"] == whole["usage"]
            plain = await served.post("/v1/completions", body)
            assert "token_ids" not in plain["choices"][0]

    asyncio.run(play())


def test_each_request_says_how_well_it_was_drafted(serving, copier):
    """Acceptance differs between domains, languages and templates: a mean over all hides it."""

    async def play():
        async with serving(drafter=copier) as served:
            _learn(served, copier, PROMPT, 21)
            body = {"max_tokens": 21, "ignore_eos": True}
            counted, prompts = 0, (PROMPT, [44, 50, 2])
            for prompt, steps in zip(prompts, (range(4, 6), range(15, 21)), strict=True):
                whole = await served.post("/v1/completions", {**body, "prompt": prompt})
                assert whole["usage"]["steps"] in steps, whole["usage"]
                counted += whole["usage"]["steps"]
                events = await served.events("/v1/completions", {**body, "prompt": prompt})
                assert events[-1]["usage"] == whole["usage"]
                assert len(events) == 1 + whole["usage"]["steps"]
            assert (await served.get("/counters"))["steps"] == 2 * counted

    asyncio.run(play())


def test_usage_comes_in_a_chunk_of_its_own_when_asked(serving):
    async def play():
        async with serving() as served:
            body = {"prompt": PROMPT, "max_tokens": 3, "stream_options": {"include_usage": True}}
            events = await served.events("/v1/completions", body)
            assert events[-1]["choices"] == []
            assert events[-1]["usage"]["completion_tokens"] == 3
            assert "usage" not in events[-2]

    asyncio.run(play())


def test_a_stop_string_cuts_text_before_it_and_ids_after_it(serving, copier):
    async def play():
        async with serving(drafter=copier) as served:
            output = _learn(served, copier, PROMPT, 60)
            tokenizer = served.service.codec.tokenizer
            text = tokenizer.decode(output)
            stop = text[9:11]
            count = next(n for n in range(1, 61) if stop in tokenizer.decode(output[:n]))
            body = {"prompt": PROMPT, "max_tokens": 60, "ignore_eos": True, "stop": [stop]}
            body["return_token_ids"] = True
            whole = await served.post("/v1/completions", body)
            choice = whole["choices"][0]
            assert choice["text"] == text[: text.index(stop)]
            assert choice["token_ids"] == output[:count]
            assert choice["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens"] == count
            events = await served.events("/v1/completions", body)
            assert "".join(e["choices"][0]["text"] for e in events) == choice["text"]
            ids = [token for e in events for token in e["choices"][0]["token_ids"]]
            assert ids == choice["token_ids"]
            # Nothing behind the stop is counted either.
            await served.post("/flush", {})
            await served.post("/v1/completions", body)
            assert (await served.get("/counters"))["emitted_tokens"] == count - 1

    asyncio.run(play())


def test_a_stop_token_inside_a_block_ends_ids_and_usage(serving, copier):
    async def play():
        async with serving(drafter=copier) as served:
            output = _learn(served, copier, PROMPT, 40)
            stop = output[3]
            served.service.engine.target.eos_token_ids = frozenset([stop])
            body = {"prompt": PROMPT, "max_tokens": 40, "return_token_ids": True}
            whole = await served.post("/v1/completions", body)
            assert whole["choices"][0]["token_ids"] == output[: output.index(stop) + 1]
            assert whole["choices"][0]["finish_reason"] == "stop"
            assert whole["usage"]["completion_tokens"] == output.index(stop) + 1

    asyncio.run(play())


def test_chat_uses_the_template(serving):
    async def play():
        async with serving() as served:
            body = {
                "messages": [
                    {"role": "system", "content": "ab"},
                    {"role": "user", "content": [{"type": "text", "text": "cat"}]},
                ],
                "max_completion_tokens": 6,
                "return_token_ids": True,
                "ignore_eos": True,
            }
            tokenizer = served.service.codec.tokenizer
            prompt = tokenizer.encode("s ab<eos>u cat<eos>a ").ids
            expected = _greedy(served, prompt, 6)
            whole = await served.post("/v1/chat/completions", body)
            choice = whole["choices"][0]
            assert choice["token_ids"] == expected
            assert choice["message"]["role"] == "assistant"
            assert whole["usage"]["prompt_tokens"] == len(prompt)
            events = await served.events("/v1/chat/completions", body)
            assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
            assert text == choice["message"]["content"]
            assert events[-1]["choices"][0]["finish_reason"] == "length"

    asyncio.run(play())


def test_text_prompts_are_encoded(serving):
    async def play():
        async with serving() as served:
            body = {"prompt": "abc", "max_tokens": 5, "return_token_ids": True, "ignore_eos": True}
            by_text = await served.post("/v1/completions", body)
            ids = served.service.codec.tokenizer.encode("abc").ids
            by_ids = await served.post("/v1/completions", {**body, "prompt": ids})
            assert by_text["choices"] == by_ids["choices"]

    asyncio.run(play())


def test_what_a_judge_asks(serving, copier):
    async def play():
        options = EngineOptions(nodes=4)
        async with serving(drafter=copier, options=options) as served:
            output = _learn(served, copier, PROMPT, 20)
            health = await served.get("/health")
            assert health["status"] == "ready" and health["tree_hash"] == "cafe"
            assert health["package"].endswith("specengine")
            assert health["options"] == options.model_dump() and not health["autoregressive"]
            for prefill_length in (None, 6):
                scores = await served.post(
                    "/score",
                    {
                        "prompt_token_ids": PROMPT,
                        "output_token_ids": output,
                        "prefill_length": prefill_length,
                    },
                )
                assert scores == {"argmax": output, "margin_nats": [0.0] * 20}
            served.service.engine.target.eos_token_ids = frozenset()
            async with served.session.post(
                "http://engine/record",
                json={"prompt_token_ids": PROMPT, "max_tokens": 20, "positions": 6},
            ) as answer:
                assert answer.content_type == "application/octet-stream"
                arrays = np.load(io.BytesIO(await answer.read()))
            assert arrays["tokens"].tolist() == output
            assert arrays["ids"].shape == (19, 6, 1) and arrays["edge"].shape == (19, 6, 1, 1)
            body = {"prompt_token_ids": PROMPT, "max_tokens": 20}
            profile = await served.post("/profile", body)
            assert profile["steps"] == 5 and profile["seconds_per_step"] > 0
            classes = profile["by_class"]
            assert set(classes) == {
                "target_gemm", "recurrent", "attention", "drafter", "prefill", "rest"
            }  # fmt: skip
            assert min(classes[k] for k in ("target_gemm", "attention", "prefill", "rest")) > 0
            before = await served.get("/counters")
            times = await served.post("/step-times", {**body, "positions": 6, "nodes": [2, 8]})
            assert set(times["seconds_per_step"]) == {"2", "8"}
            assert min(times["seconds_per_step"].values()) > 0
            counters = await served.get("/counters")
            assert counters == before, "other trees leave the system's own counts alone"
            assert counters["steps"] and counters["activations"]["chain"]
            async with served.session.get("http://engine/metrics") as answer:
                text = await answer.text()
            assert f"specengine_steps_total {counters['steps']}\n" in text
            assert 'specengine_activations_total{mechanism="chain"}' in text
            assert await served.post("/flush", {}) == {"flushed": True, "running": 0}
            counters = await served.get("/counters")
            assert counters["steps"] == 0
            names = [m["id"] for m in (await served.get("/v1/models"))["data"]]
            assert names == ["tiny"]
            assert (await served.get("/v1/models/tiny"))["id"] == "tiny"
            async with served.session.get("http://engine/v1/models/other/one") as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["code"] == "model_not_found"

    asyncio.run(play())


def test_a_profile_finds_recurrent_layers_and_the_drafter(make_hybrid):
    engine, ratios = make_hybrid(), []
    # A stall of a busy machine falls into one of two measurements: the calmest of five counts.
    while len(ratios) < 5 and not any(abs(ratio - 1) < 1 for ratio in ratios):
        result = profile_request(engine, PROMPT, 12, lambda: True)
        assert all(value > 0 for value in result["by_class"].values())
        ratios.append(sum(result["by_class"].values()) / result["seconds_per_step"])
    assert any(abs(ratio - 1) < 1 for ratio in ratios), ratios


@pytest.fixture
def make_hybrid(tiny_model, copier):
    def make():
        target = Target(tiny_model("qwen3_5"), taps=(0,))
        target.eos_token_ids = frozenset()
        return Engine(target, copier)

    return make


def test_unknown_paths_and_methods_answer_in_the_same_shape(serving):
    async def play():
        async with serving() as served:
            error = await served.post("/nothing", {}, status=404)
            assert "/nothing" in error["error"]["message"]
            async with served.session.get("http://engine/score") as answer:
                assert answer.status == 405
                assert (await answer.json())["error"]["message"]

    asyncio.run(play())


def test_the_servers_counters_are_the_judges_record(serving, copier):
    async def play():
        async with serving(drafter=copier) as served:
            await served.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 9})
            Counters.model_validate(await served.get("/counters"))

    asyncio.run(play())

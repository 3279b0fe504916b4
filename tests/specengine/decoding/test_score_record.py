"""Teacher-forced scores, and recordings, against plain decoding."""

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.errors import NumericError, RequestError

PROMPT = np.random.default_rng(5).integers(3, 61, 11).tolist()


@pytest.mark.parametrize("prefill_length", [None, 1, 4, 10, 11, 12, 100])
def test_scores_of_the_greedy_text_agree(family, make_target, run_request, prefill_length):
    engine = Engine(make_target(family), None)
    output = run_request(engine, PROMPT, 20, ignore_eos=True)
    scores = engine.score(PROMPT, output, prefill_length)
    assert scores.argmax.tolist() == output
    assert scores.margin_nats.tolist() == [0.0] * 20
    assert scores.margin_nats.dtype == np.float32


def test_margins_are_differences_of_log_probabilities(family, make_target, tiny_model):
    engine = Engine(make_target(family), None)
    output = np.random.default_rng(9).integers(3, 61, 17).tolist()
    with torch.inference_mode():
        logits = tiny_model(family)(torch.tensor([PROMPT + output]), use_cache=False).logits[0]
    logp = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    expected = logp.max(-1).values - logp.gather(-1, torch.tensor(output)[:, None])[:, 0]
    for prefill_length in (None, 5):
        scores = engine.score(PROMPT, output, prefill_length)
        assert scores.argmax.tolist() == logp.argmax(-1).tolist()
        np.testing.assert_allclose(scores.margin_nats, expected.numpy(), atol=2e-3)


def test_non_finite_scores_are_refused(make_target):
    target = make_target("llama")
    head = target.logits_fp32
    target.logits_fp32 = lambda hidden: head(hidden) * float("nan")
    with pytest.raises(NumericError, match="scorer"):
        Engine(target, None).score(PROMPT, [3, 4])


@pytest.mark.parametrize("field", ["prompt_token_ids", "output_token_ids"])
def test_scoring_names_an_empty_or_unknown_field(make_target, field):
    engine = Engine(make_target("llama"), None)
    for wrong in ([], [61]):
        arguments = {"prompt_token_ids": [3], "output_token_ids": [4], field: wrong}
        with pytest.raises(RequestError, match=field):
            engine.score(arguments["prompt_token_ids"], arguments["output_token_ids"])


@pytest.mark.parametrize("tree", ["chain", "best_first"])
@pytest.mark.parametrize("positions", [3, 7, 12])
def test_a_recording_holds_the_lattice_of_every_anchor(
    tree, positions, make_target, random_drafter, run_request
):
    target = make_target("llama", taps=(0,))
    drafter = random_drafter(target)
    engine = Engine(target, drafter, EngineOptions(tree=tree, nodes=6))
    output = run_request(Engine(target, None), PROMPT, 14, ignore_eos=True)
    recording = engine.record(PROMPT, 14, positions)
    stop = next((i for i, t in enumerate(output) if t in target.eos_token_ids), 13)
    assert recording.tokens.tolist() == output[: stop + 1]
    assert recording.ids.shape == (stop, positions, 8)
    assert recording.edge.shape == (stop, positions, 8, 8)
    text = PROMPT + output
    for index in (0, 1, stop // 2, stop - 1):
        anchor = len(PROMPT) + index
        cache = target.new_cache(64)
        features = target.forward(cache, torch.tensor(text[:anchor])).features
        state = drafter.new_state(64)
        drafter.extend(state, features, np.array(text[:anchor]))
        lattice = drafter.draft(state, text[anchor], positions)
        np.testing.assert_array_equal(lattice.ids, recording.ids[index])
        np.testing.assert_allclose(lattice.edge, recording.edge[index], atol=1e-4)


def test_recording_follows_high_acceptance(make_target, knowing_drafter, run_request):
    target = make_target("qwen3_5", taps=(0,), stops=())
    output = run_request(Engine(target, None), PROMPT, 30)
    drafter = knowing_drafter(PROMPT + output, target, 1.0)
    engine = Engine(target, drafter, EngineOptions(tree="best_first", nodes=16))
    for limit in (30, 29, 5, 2, 1):
        recording = engine.record(PROMPT, limit, 7)
        assert recording.tokens.tolist() == output[:limit]
        assert len(recording.ids) == limit - 1
        for index, ids in enumerate(recording.ids):
            following = output[index + 1 : index + 8]
            assert all(token in row for token, row in zip(following, ids, strict=False))
    counters = engine.counters
    assert counters.emitted_tokens == 29 + 28 + 4 + 1
    assert counters.emitted_tokens / counters.steps > 2
    assert counters.activations["best_first_tree"] <= counters.steps


def test_a_recording_stops_at_the_stop_token(make_target, knowing_drafter, run_request):
    target = make_target("qwen3_5", taps=(0,), stops=())
    output = run_request(Engine(target, None), PROMPT, 30)
    target.eos_token_ids = frozenset([output[9]])
    engine = Engine(target, knowing_drafter(PROMPT + output, target, 1.0))
    recording = engine.record(PROMPT, 30, 7)
    assert recording.tokens.tolist() == output[: output.index(output[9]) + 1]
    assert len(recording.ids) == len(recording.tokens) - 1


def test_recording_can_be_ended(make_target, random_drafter):
    target = make_target("llama", taps=(0,), stops=())
    answers = iter([True, True, False])
    engine = Engine(target, random_drafter(target))
    recording = engine.record(PROMPT, 200, 7, keep_going=lambda: next(answers))
    assert len(recording.tokens) < 40


def test_recording_needs_a_drafter(make_target):
    with pytest.raises(RequestError, match="needs a drafter"):
        Engine(make_target("llama"), None).record(PROMPT, 4, 7)

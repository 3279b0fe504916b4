"""The same engine on a GPU, in float32: drafts of every shape give its own AR text."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.decoding.proposal import root_only
from specengine.errors import OptionError
from specengine.integrations.packed_module import PackedLinear
from specengine.models import Target

PROMPT = np.random.default_rng(5).integers(3, 61, 11).tolist()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_drafts_give_the_ar_text(family, options, tiny_model, knowing_drafter, run_request):
    torch.backends.cuda.matmul.allow_tf32 = False
    target = Target(tiny_model(family).to("cuda"), taps=(0,))
    target.eos_token_ids = frozenset()
    output = run_request(Engine(target, None), PROMPT, 24)
    engine = Engine(target, knowing_drafter(PROMPT + output, target, 0.7), options)
    assert run_request(engine, PROMPT, 24) == output
    scores = engine.score(PROMPT, output, 7)
    assert scores.argmax.tolist() == output
    recording = engine.record(PROMPT, 24, 7)
    assert recording.tokens.tolist() == output


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("nodes", [2, 12, 40])
def test_trees_of_the_kernel_are_those_of_the_host(
    nodes, graphs, tiny_model, random_drafter, run_request
):
    torch.backends.cuda.matmul.allow_tf32 = False
    target = _graphed(tiny_model, "llama", cuda_graphs=graphs)
    drafter = random_drafter(target)
    options = {"tree": "best_first", "nodes": nodes, "positions": 9, "cuda_graphs": graphs}
    outputs, trees = [], []
    for there in (False, True):
        engine = Engine(target, drafter, EngineOptions(**options, device_tree=there))
        verify, seen = engine._step._verifier.verify, []
        engine._step._verifier.verify = lambda slot, tree, run=verify, kept=seen: (
            kept.append(tree),
            run(slot, tree),
        )[1]
        outputs.append(run_request(engine, PROMPT, 24))
        trees.append(seen)
        assert (engine.counters.activations["device_tree"] > 15) is there
    assert outputs[0] == outputs[1]
    for tree, wanted in zip(*trees[::-1], strict=True):
        for name in ("tokens", "parent", "depth", "logp"):
            np.testing.assert_array_equal(getattr(tree, name), getattr(wanted, name))


def _graphed(tiny_model, family, **changes):
    model = tiny_model(family).to("cuda", changes.pop("dtype", torch.float32))
    return Target(model, taps=(0,), options=EngineOptions(**changes), eos_token_ids=frozenset())


def test_captured_passes_give_the_ar_text(
    family, options, tiny_model, knowing_drafter, run_request
):
    torch.backends.cuda.matmul.allow_tf32 = False
    target = _graphed(tiny_model, family, cuda_graphs=True)
    engine = Engine(target, None)
    output = run_request(engine, PROMPT, 24)
    assert engine.counters.activations["cuda_graphs"] == 23
    plain = Target(tiny_model(family).to("cuda"), eos_token_ids=frozenset())
    assert output == run_request(Engine(plain, None), PROMPT, 24)
    drafter = knowing_drafter(PROMPT + output, target, 0.7)
    if target.layout.delta.layers and options.tree != "chain":
        with pytest.raises(OptionError, match="cuda_graphs"):
            Engine(target, drafter, options)
        return
    engine = Engine(target, drafter, options)
    for _ in range(2):
        assert run_request(engine, PROMPT, 24) == output
    long = PROMPT * 20
    output = run_request(Engine(plain, None), long, 24)
    engine = Engine(target, knowing_drafter(long + output, target, 0.7), options)
    assert run_request(engine, long, 24) == output


def test_memory_of_a_spoiled_request_does_not_reach_the_next(tiny_model):
    target = _graphed(tiny_model, "llama", cuda_graphs=True)
    cache = target.new_cache(256)
    cache.keys_values.fill_(float("nan"))
    cache.reset()
    assert torch.isfinite(target.verify(cache, root_only(5))[0]).all()


def _packed(format: str, graphs: bool) -> Target:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    options = EngineOptions(linear=format, cuda_graphs=graphs)
    return Target(model, taps=(0,), options=options, eos_token_ids=frozenset())


@pytest.mark.parametrize("format", ["w12", "w11s"])
@pytest.mark.parametrize("graphs", [False, True])
def test_packed_weights_keep_the_text_for_every_tree(
    format, graphs, options, knowing_drafter, run_request
):
    target = _packed(format, graphs)
    assert sum(isinstance(m, PackedLinear) for m in target.model.modules()) == 14
    engine = Engine(target, None)
    output = run_request(engine, PROMPT, 24)
    assert engine.counters.activations["packed_linear"] == 23
    assert (engine.score(PROMPT, output).margin_nats < 0.25).all()
    drafted = Engine(target, knowing_drafter(PROMPT + output, target, 0.7), options)
    again = drafted.score(PROMPT, run_request(drafted, PROMPT, 24))
    assert (again.margin_nats < 0.25).all()

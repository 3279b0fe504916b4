"""Tiny random models of every supported family, float32, and random draft trees, for tests."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specengine.trees.draft_tree import DraftTree

VOCAB = 61
WINDOW = 8
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SIZES, num_hidden_layers=2, tie_word_embeddings=True))


def _qwen2() -> PreTrainedModel:
    config = Qwen2Config(
        **_SIZES,
        num_hidden_layers=2,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["full_attention", "sliding_attention"],
    )
    return Qwen2ForCausalLM(config)


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_hidden_layers=2))


def _gemma3() -> PreTrainedModel:
    config = Gemma3TextConfig(
        **_SIZES,
        num_hidden_layers=3,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=16,
        final_logit_softcapping=5.0,
    )
    return Gemma3ForCausalLM(config)


def _qwen3_5() -> PreTrainedModel:
    config = Qwen3_5TextConfig(
        **_SIZES,
        num_hidden_layers=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_conv_kernel_dim=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    )
    return Qwen3_5ForCausalLM(config)


BUILDERS = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
    "qwen3_5": _qwen3_5,
}


@cache
def _built(family: str, seed: int) -> tuple[PreTrainedModel, torch.Tensor]:
    """The model, and torch's random numbers after it was made."""
    torch.manual_seed(seed)
    model = BUILDERS[family]().eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.3 if parameter.ndim == 1 else 0.08))
    return model, torch.get_rng_state()


def build_model(family: str, seed: int = 0) -> PreTrainedModel:
    """A model whose greedy outputs vary: every parameter, biases and norms too, is random."""
    model, numbers = _built(family, seed)
    # Copied, which takes half the time; random numbers go on as if it had just been made.
    torch.set_rng_state(numbers)
    return copy.deepcopy(model)


def random_tree(
    generator: np.random.Generator, anchor: int, nodes: int, chainy: float
) -> DraftTree:
    """A tree whose nodes follow the newest one with probability `chainy`, else any earlier one."""
    parent = [-1]
    for node in range(1, nodes):
        follow = generator.random() < chainy
        parent.append(node - 1 if follow else int(generator.integers(0, node)))
    depth = [0] * nodes
    for node in range(1, nodes):
        depth[node] = depth[parent[node]] + 1
    tokens = generator.integers(3, VOCAB, nodes)
    tokens[0] = anchor
    return DraftTree(
        tokens.astype(np.int64),
        np.array(parent, dtype=np.int32),
        np.array(depth, dtype=np.int32),
        np.zeros(nodes, dtype=np.float32),
    )


@pytest.fixture(params=sorted(BUILDERS))
def family(request: pytest.FixtureRequest) -> str:
    """Every supported family in turn."""
    return request.param


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """`tiny_model(family, seed=0)`: a fresh random model (61 tokens, hidden 64, window 8)."""
    return build_model


@pytest.fixture(scope="session")
def tree_maker() -> Callable[..., DraftTree]:
    """`tree_maker(generator, anchor, nodes, chainy)`: a random draft tree."""
    return random_tree


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the planning kernel was allowed, for every product of queries and keys."""
    seen: list[bool] = []
    attend = functional.scaled_dot_product_attention

    def watched(*arguments: Any, **options: Any) -> torch.Tensor:
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return attend(*arguments, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    return seen

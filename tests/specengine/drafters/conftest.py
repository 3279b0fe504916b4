"""Tiny DFlash2 drafters and the part of a target that they borrow."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from specengine.drafters.config import DFlash2Config, parse_config
from specengine.drafters.network import DFlash2Network

HIDDEN, VOCAB, LAYERS = 64, 61, 6


class BorrowedTarget:
    """An embedding and a head, as `load_target` exposes them."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False).requires_grad_(False)
        self.hidden_size, self.vocab_size, self.num_layers = HIDDEN, VOCAB, LAYERS
        self.dtype, self.device = torch.float32, torch.device("cpu")


def config_table(**changes: object) -> dict[str, object]:
    special = {
        "block_size": 8,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "mask_token_id": 3,
        "selector_rank": 8,
        "selector_top_k": 5,
        "target_layer_ids": [1, 3],
    }
    table: dict[str, object] = {
        "architectures": ["DFlash2DraftModel"],
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0},
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "num_target_layers": LAYERS,
        "layer_types": ["full_attention", "full_attention"],
        "is_causal": False,
        "dflash_config": special,
    }
    special.update({key: changes.pop(key) for key in list(changes) if key in special})
    table.update(changes)
    return {key: value for key, value in table.items() if value is not None}


def tiny_config(**changes: object) -> DFlash2Config:
    return parse_config(config_table(**changes), "test")


def random_network(config: DFlash2Config, *, plain: bool = False, seed: int = 0) -> DFlash2Network:
    """Random weights; `plain` keeps identity filters and a selector that adds nothing."""
    torch.manual_seed(seed)
    network = DFlash2Network(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if plain and ("conv" in name or "successor" in name):
                continue
            parameter.normal_(std=0.3)
            if name.endswith("norm.weight") or "layernorm" in name:
                parameter.add_(1.0)
    return network.eval().requires_grad_(requires_grad=False)


@pytest.fixture
def target() -> BorrowedTarget:
    return BorrowedTarget()


@pytest.fixture
def make_config() -> Callable[..., DFlash2Config]:
    return tiny_config


@pytest.fixture
def make_table() -> Callable[..., dict[str, object]]:
    return config_table


@pytest.fixture
def make_network() -> Callable[..., DFlash2Network]:
    return random_network

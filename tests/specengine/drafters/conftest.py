"""Tiny drafters of every kind and the part of a target that they borrow."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from specengine.drafters.checkpoint import AnyNetwork, new_network
from specengine.drafters.config import AnyConfig, DFlash2Config, parse_config
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


KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "dflash": ("dflash", {}),
    "dflash-shifted": ("dflash", {"sample_from_anchor": True}),
    "dflash2": ("dflash2", {}),
    "dspark": ("dspark", {}),
    "dspark-gated": ("dspark", {"markov_head_type": "gated"}),
    "dspark-rnn": ("dspark", {"markov_head_type": "rnn"}),
    "dspark-own": ("dspark", {"draft_vocab_size": 40}),
    "eagle3": ("eagle3", {}),
    "eagle3-own": ("eagle3", {"draft_vocab_size": 40, "hidden_size": 48}),
}
"""Drafters of the contract suite: kind, and how they differ from its plainest."""
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "eagle3-residual": (
        "eagle3",
        {"norm_before_residual": True, "norm_before_fc": True, "qk_norm": True},
    ),
    "eagle3-normed": ("eagle3", {"fc_norm": True, "norm_output": True}),
}
"""Norms that some checkpoints have and others lack, for comparisons with a plain reference."""


def layers_table(hidden: int = HIDDEN, vocab: int = VOCAB, layers: int = LAYERS) -> dict:
    """What the layouts share: two layers of width `hidden`."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": vocab,
        "max_position_embeddings": 256,
        "num_target_layers": layers,
    }


def kind_table(kind: str, target: object, changes: dict[str, object]) -> dict[str, object]:
    """A configuration of one kind for a target, in its authors' layout."""
    table = layers_table(target.hidden_size, target.vocab_size, target.num_layers)
    taps = [0] if target.num_layers < 4 else [1, 3]
    taps = [tap for tap in taps if tap < target.num_layers - 1]
    block = {"block_size": 5, "mask_token_id": 3, "target_layer_ids": taps}
    if kind == "dflash":
        table["dflash_config"] = block
    if kind == "dflash2":
        own = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8}
        table["dflash_config"] = block | own | {"selector_top_k": 5}
    if kind == "dspark":
        table |= block | {"markov_rank": 8, "markov_head_type": "vanilla", "num_anchors": 4}
        table |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    if kind == "eagle3":
        table |= {"target_layer_ids": taps, "num_hidden_layers": 1, "ttt_length": 5}
        table |= {"eagle_aux_hidden_state_layer_ids": None, "draft_vocab_size": target.vocab_size}
        table["target_hidden_size"] = target.hidden_size
    return table | changes


def kind_config(name: str, target: object) -> AnyConfig:
    """The checked configuration of one of `KINDS` or `VARIANTS`."""
    kind, changes = (KINDS | VARIANTS)[name]
    table = kind_table(kind, target, dict(changes))
    names = {"layers.0.hidden_norm.weight"} if kind == "eagle3" else set()
    if name.endswith("own"):
        names |= {"embed_tokens.weight", "lm_head.weight", "d2t"}
    return parse_config(table, "test", names)


def kind_network(name: str, target: object, seed: int = 0) -> AnyNetwork:
    """A random network of one of `KINDS` or `VARIANTS`, whose every part matters."""
    config = kind_config(name, target)
    torch.manual_seed(seed)
    network = new_network(config)
    with torch.no_grad():
        for label, parameter in network.named_parameters():
            parameter.normal_(std=0.25)
            if label.endswith("norm.weight") or "layernorm" in label:
                parameter.add_(1.0)
        if network.d2t is not None:
            # No draft id is its own token, so that taking one for the other always shows.
            first, size = 9, len(network.d2t)
            tokens = first + torch.randperm(config.vocab_size - first)[:size].sort().values
            network.d2t.copy_(tokens - torch.arange(len(tokens)))
    return network.eval().requires_grad_(requires_grad=False)


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of drafter in turn."""
    return request.param


@pytest.fixture
def make_kind() -> Callable[..., AnyNetwork]:
    return kind_network


@pytest.fixture
def make_kind_config() -> Callable[..., AnyConfig]:
    return kind_config


@pytest.fixture
def make_kind_table() -> Callable[..., dict[str, object]]:
    return kind_table


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

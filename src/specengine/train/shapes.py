"""Sizes of new drafters, and their fresh networks."""

from dataclasses import dataclass
from typing import Any

import torch

from specengine.drafters.checkpoint import AnyNetwork, new_network
from specengine.drafters.config import AnyConfig, parse_config
from specengine.drafters.eagle3_network import Eagle3Network
from specengine.drafters.records import (
    KINDS,
    DFlash2Config,
    DFlashConfig,
    DSparkConfig,
    Eagle3Config,
)
from specengine.errors import OptionError
from specengine.train.shards import TokenShard
from specengine.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """Size of a new drafter; what is None follows the kind or the target."""

    kind: str = "dflash2"
    layers: int | None = None
    """3 for block drafters; EAGLE-3 has 1."""
    taps: int | tuple[int, ...] | None = None
    """How many layers are tapped, spread evenly, or which; 5 for block drafters, 3 for EAGLE-3."""
    heads: int | None = None
    kv_heads: int | None = None
    intermediate: int | None = None
    """Width of the MLPs."""
    rank: int = 32
    """Of DFlash2's selector and DSpark's Markov head."""
    block_size: int = 8
    """Tokens of a trained block, the anchor included."""
    unrolled: int = 7
    """Steps that EAGLE-3 unrolls."""
    draft_vocabulary: int | None = None
    """Tokens of EAGLE-3's own head, the most frequent ones; None borrows the target's head."""
    selector_top_k: int = 16
    conv_group_size: int = 16
    mask_token_id: int = 0


def drafter_config(teacher: Teacher, shape: DrafterShape) -> AnyConfig:
    """A drafter whose layers have the target's widths where the shape does not say otherwise.

    Raises:
        OptionError: unknown kind, or a mask token outside the vocabulary.
        CheckpointError: sizes that do not go together.
    """
    if shape.kind not in KINDS:
        raise OptionError(
            f"unknown drafter kind '{shape.kind}'", where="kind", fix=f"one of {', '.join(KINDS)}"
        )
    if not 0 <= shape.mask_token_id < teacher.config.vocab_size:
        raise OptionError(
            f"is {shape.mask_token_id}, outside {teacher.config.vocab_size} rows",
            where="mask token", fix="name a row of the vocabulary that no text holds",
        )  # fmt: skip
    shared = _shared(teacher, shape)
    if shape.kind == "eagle3":
        config: AnyConfig = _eagle3(teacher, shape, shared)
    else:
        config = _block(shape, shared)
    # The reader's own rules decide what is a drafter.
    layers = range(config.num_hidden_layers if shape.kind == "eagle3" else 0)
    names = {f"layers.{layer}.hidden_norm.weight" for layer in layers}
    parse_config(config.to_json(), "the drafter's shape", names)
    return config


def _shared(teacher: Teacher, shape: DrafterShape) -> dict[str, Any]:
    config = teacher.config
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    layers = shape.layers or (1 if shape.kind == "eagle3" else 3)
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": shape.intermediate or config.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads or heads,
        "num_key_value_heads": shape.kv_heads or config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "num_target_layers": config.num_hidden_layers,
        "target_layer_ids": _taps(config.num_hidden_layers, shape),
        "layer_types": ("full_attention",) * layers,
        "sliding_window": None,
    }


def _taps(depth: int, shape: DrafterShape) -> tuple[int, ...]:
    """Evenly from layer 1 to the third last, as published drafters tap; one sits in the middle."""
    taps = shape.taps or (3 if shape.kind == "eagle3" else 5)
    if isinstance(taps, tuple):
        return taps
    if shape.taps is not None and not 1 <= taps <= depth - 1:
        raise OptionError(
            f"are {taps}, and {depth - 1} of the target's layers can be tapped",
            where="taps", fix="ask for fewer",
        )  # fmt: skip
    if taps == 1:
        return (depth // 2,)
    return tuple(round(1 + i * (depth - 4) / (taps - 1)) for i in range(taps))


def _block(shape: DrafterShape, shared: dict[str, Any]) -> AnyConfig:
    block = {
        **shared,
        "is_causal": (False,) * shared["num_hidden_layers"],
        "mask_token_id": shape.mask_token_id,
        "block_size": shape.block_size,
    }
    if shape.kind == "dflash":
        return DFlashConfig(**block)
    if shape.kind == "dflash2":
        return DFlash2Config(
            **block,
            conv_kernel_size=2,
            conv_group_size=shape.conv_group_size,
            selector_rank=shape.rank,
            selector_top_k=min(shape.selector_top_k, shared["vocab_size"]),
        )
    # The anchor's row predicts, too, so a block has as many rows as it drafts tokens.
    block |= {"slots": "shifted", "block_size": shape.block_size - 1}
    return DSparkConfig(
        **block,
        markov_rank=shape.rank,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )


def _eagle3(teacher: Teacher, shape: DrafterShape, shared: dict[str, Any]) -> Eagle3Config:
    size = shape.draft_vocabulary
    return Eagle3Config(
        **shared,
        target_hidden_size=teacher.config.hidden_size,
        ttt_length=shape.unrolled,
        draft_vocab_size=None if size is None or size >= shared["vocab_size"] else size,
    )


def fresh_network(config: AnyConfig, teacher: Teacher, shard: TokenShard, seed: int) -> AnyNetwork:
    """Random weights (normal, 0.02); heads of a kind's own start by adding nothing.

    EAGLE-3's draft vocabulary is the most frequent tokens of the answers, and its head starts as
    the target's rows of them.
    """
    torch.manual_seed(seed)
    network = new_network(config)
    still = ("kernel_projection", "markov_w2", "confidence_head.proj")
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith(still):
            torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(network, Eagle3Network) and network.d2t is not None:
        tokens = torch.from_numpy(shard.frequent_tokens(len(network.d2t), config.vocab_size))
        network.d2t.copy_(tokens - torch.arange(len(tokens)))
        rows = teacher.model.get_output_embeddings().weight[tokens.to(teacher.device)]
        with torch.no_grad():
            network.lm_head.weight.copy_(rows)
    return network.to(teacher.device)


def unused_token(teacher: Teacher, shard: TokenShard) -> int:
    """A vocabulary row that no sequence holds and no answer ends with, for masks.

    Special tokens come first, since no later text is likely to hold one.

    Raises:
        OptionError: every row is in use.
    """
    size = min(teacher.config.vocab_size, len(teacher.model.get_input_embeddings().weight))
    special = [token for token in teacher.tokenizer.all_special_ids if token < size]
    taken = shard.token_set() | teacher.stop_ids
    for token in (*reversed(special), *reversed(range(size))):
        if token not in taken:
            return token
    raise OptionError(
        "has no unused row", where="the target's vocabulary", fix="name one with --mask-token"
    )

"""The drafter's `config.json`: what is read, and what is refused."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from specengine.drafters.published import Table, unified
from specengine.drafters.records import (
    BlockConfig,
    DFlash2Config,
    DFlashConfig,
    DraftConfig,
    DSparkConfig,
    Eagle3Config,
)
from specengine.errors import CheckpointError
from specengine.shards import read_json

AnyConfig = DFlashConfig | DFlash2Config | DSparkConfig | Eagle3Config
_SHAPE = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)

_STATIC_ROPE = ("linear", "llama3", "yarn")
"""Scaled rotary types whose angles do not depend on the length of the sequence seen so far."""


def read_config(folder: Path, names: Collection[str] = ()) -> AnyConfig:
    """Read and check `folder/config.json`; see `parse_config`.

    Raises:
        CheckpointError: unreadable file, or as `parse_config`.
    """
    path = folder / "config.json"
    return parse_config(read_json(path), str(path), names)


def parse_config(table: dict[str, Any], where: str, names: Collection[str] = ()) -> AnyConfig:
    """Turn a published configuration into the checked record of its kind.

    Args:
        table: the parsed JSON.
        where: names it in errors.
        names: canonical names of the checkpoint's tensors, which tell the kind and what it brings
            of its own; without them the configuration alone decides.

    Raises:
        CheckpointError: no drafter's configuration, a missing or ill-typed field, or a field that
            asks for something that no drafter here computes.
    """
    fields = unified(table, names, where)
    build: dict[str, Callable[[Table], AnyConfig]] = {
        "dflash": lambda f: DFlashConfig(**_block(f)),
        "dflash2": _dflash2,
        "dspark": _dspark,
        "eagle3": _eagle3,
    }
    try:
        config = build[fields["kind"]](fields)
    except KeyError as error:
        raise CheckpointError(
            f"lacks the field {error}", where=where, fix="give a complete config.json"
        ) from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"holds a field of a wrong type or size ({error})", where=where,
            fix="correct config.json",
        ) from error  # fmt: skip
    _check(config, where)
    return config


def check_taps(taps: tuple[int, ...], layers: int, where: str) -> None:
    """Refuse taps that a target of `layers` layers does not have, or has only final-normed.

    Raises:
        CheckpointError: a tap lies outside 0 .. layers - 2.
    """
    for tap in taps:
        if not 0 <= tap < layers - 1:
            raise CheckpointError(
                f"target_layer_ids must lie below the last target layer, and layer {tap} of "
                f"{layers} does not",
                where=where,
                fix="use the drafter that was trained for this target",
            )


def _shared(fields: Table) -> Table:
    hidden, heads = int(fields["hidden_size"]), int(fields["num_attention_heads"])
    layers = int(fields["num_hidden_layers"])
    rope = fields.get("rope_parameters") or {}
    draft_vocab, window = fields.get("draft_vocab_size"), fields.get("sliding_window")
    targets = fields.get("num_target_layers")
    return {
        **{name: int(fields[name]) for name in _SHAPE},
        "num_key_value_heads": int(fields.get("num_key_value_heads") or heads),
        "head_dim": int(fields.get("head_dim") or hidden // heads),
        "rms_norm_eps": float(fields["rms_norm_eps"]),
        "rope_theta": float(rope["rope_theta"] if "rope_theta" in rope else fields["rope_theta"]),
        "rope_scaling": _rope_scaling(fields),
        "num_target_layers": None if targets is None else int(targets),
        "target_layer_ids": tuple(fields["target_layer_ids"]),
        "layer_types": tuple(fields.get("layer_types") or ["full_attention"] * layers),
        "sliding_window": None if window is None else int(window),
        "attention_bias": bool(fields.get("attention_bias")),
        "draft_vocab_size": None
        if draft_vocab is None or int(draft_vocab) == int(fields["vocab_size"])
        else int(draft_vocab),
        "own_embedding": fields["own_embedding"],
        "own_head": fields["own_head"],
        "tied_head": fields["tied_head"],
    }


def _block(fields: Table) -> Table:
    cap = fields.get("final_logit_softcapping")
    shared = _shared(fields)
    causal = fields["causality"]
    return {
        **shared,
        "block_size": int(fields["block_size"]),
        "mask_token_id": int(fields["mask_token_id"]),
        "slots": fields["slots"],
        # Checkpoints older than the field were trained with causal windows and bidirectional full
        # layers; reading them otherwise costs acceptance silently.
        "is_causal": tuple(
            kind == "sliding_attention" if causal is None else causal
            for kind in shared["layer_types"]
        ),
        "output_multiplier": float(fields.get("output_multiplier") or 1.0),
        "final_logit_softcapping": float(cap) if cap else None,
        "input_embedding_scale": float(fields.get("input_embedding_scale") or 1.0),
    }


def _dflash2(fields: Table) -> DFlash2Config:
    own = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return DFlash2Config(**_block(fields), **{name: int(fields[name]) for name in own})


def _dspark(fields: Table) -> DSparkConfig:
    confident = bool(fields.get("enable_confidence_head"))
    return DSparkConfig(
        **_block(fields),
        markov_rank=int(fields["markov_rank"]),
        markov_head_type=fields.get("markov_head_type") or "vanilla",
        enable_confidence_head=confident,
        confidence_head_with_markov=confident and bool(fields["confidence_head_with_markov"]),
    )


def _eagle3(fields: Table) -> Eagle3Config:
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")
    return Eagle3Config(
        **_shared(fields),
        target_hidden_size=int(fields.get("target_hidden_size") or fields["hidden_size"]),
        ttt_length=int(fields.get("ttt_length") or 7),
        **{name: bool(fields.get(name)) for name in flags},
    )


def _rope_scaling(fields: Table) -> tuple[tuple[str, Any], ...]:
    """Published numbers of scaled rotary positions, without the base."""
    rope = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
    kind = rope.pop("rope_type", rope.pop("type", None))
    rope.pop("rope_theta", None)
    if kind == "default" or (kind is None and not rope):
        return ()
    return (("rope_type", kind), *sorted(rope.items()))


def _check(config: AnyConfig, where: str) -> None:
    faults = _shared_rules(config)
    if isinstance(config, BlockConfig):
        faults |= _block_rules(config)
    if isinstance(config, DFlash2Config):
        faults |= {
            "conv_group_size must divide hidden_size": config.hidden_size % config.conv_group_size
            == 0,
            "selector_top_k must lie in 1..vocab_size": 1
            <= config.selector_top_k
            <= config.vocab_size,
            "draft_vocab_size must be the target's for DFlash2": config.draft_vocab_size is None,
        }
    if isinstance(config, DSparkConfig):
        faults["markov_head_type knows vanilla, gated and rnn"] = config.markov_head_type in (
            "vanilla", "gated", "rnn",
        )  # fmt: skip
        faults["markov_rank must be at least 1"] = config.markov_rank >= 1
    if isinstance(config, Eagle3Config):
        faults["num_hidden_layers must be 1 for EAGLE-3"] = config.num_hidden_layers == 1
        faults["norm_before_fc and fc_norm exclude each other"] = not (
            config.norm_before_fc and config.fc_norm
        )
    for rule, holds in faults.items():
        if not holds:
            raise CheckpointError(rule, where=where, fix="correct config.json")
    if config.num_target_layers is not None:
        check_taps(config.target_layer_ids, config.num_target_layers, where)


def _shared_rules(config: DraftConfig) -> dict[str, bool]:
    kinds = {"full_attention", "sliding_attention"}
    sizes = (
        config.hidden_size, config.intermediate_size, config.num_hidden_layers,
        config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.vocab_size,
    )  # fmt: skip
    return {
        "sizes must be positive": min(sizes) >= 1,
        "layer_types must name every layer": len(config.layer_types) == config.num_hidden_layers,
        "sliding layers need sliding_window": config.sliding_window is not None
        or "sliding_attention" not in config.layer_types,
        "layer_types knows full_attention and sliding_attention": set(config.layer_types) <= kinds,
        f"scaled rotary positions must be of type {', '.join(_STATIC_ROPE)}": (
            not config.rope_scaling or config.rope_scaling[0][1] in _STATIC_ROPE
        ),
        "num_key_value_heads must divide num_attention_heads": config.num_attention_heads
        % max(config.num_key_value_heads, 1)
        == 0,
        "draft_vocab_size must lie in 1..vocab_size": config.draft_vocab_size is None
        or 1 <= config.draft_vocab_size <= config.vocab_size,
    }


def _block_rules(config: BlockConfig) -> dict[str, bool]:
    smallest = 1 if config.slots == "shifted" else 2
    return {
        f"block_size must be at least {smallest}": config.block_size >= smallest,
    }

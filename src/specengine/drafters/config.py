"""The drafter's `config.json`: what is read, and what is refused."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specengine.errors import CheckpointError

ARCHITECTURE = "DFlash2DraftModel"


@dataclass(frozen=True, slots=True)
class DFlash2Config:
    """Shape and rules of one DFlash2 drafter; field names follow the published configs."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    max_position_embeddings: int
    num_target_layers: int
    layer_types: tuple[str, ...]
    sliding_window: int | None
    is_causal: tuple[bool, ...]
    """Per layer: whether a block row sees only the rows before it."""
    block_size: int
    """Trained rows per block, the anchor included. Weights do not depend on it."""
    conv_kernel_size: int
    conv_group_size: int
    mask_token_id: int
    selector_rank: int
    selector_top_k: int
    target_layer_ids: tuple[int, ...]
    """0-based target layers whose outputs are read, in the order of `fc`'s columns."""
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in positions, the row itself counted; None for full."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    def to_json(self) -> dict[str, Any]:
        """The published layout of `config.json`."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "num_target_layers": self.num_target_layers,
            "layer_types": list(self.layer_types),
            "sliding_window": self.sliding_window,
            "is_causal": self.is_causal[0],
            "dflash_config": {
                "block_size": self.block_size,
                "conv_kernel_size": self.conv_kernel_size,
                "conv_group_size": self.conv_group_size,
                "mask_token_id": self.mask_token_id,
                "selector_rank": self.selector_rank,
                "selector_top_k": self.selector_top_k,
                "target_layer_ids": list(self.target_layer_ids),
                "output_multiplier": self.output_multiplier,
                "final_logit_softcapping": self.final_logit_softcapping,
                "input_embedding_scale": self.input_embedding_scale,
            },
        }


def read_config(folder: Path) -> DFlash2Config:
    """Read and check `folder/config.json`.

    Raises:
        CheckpointError: unreadable file, another architecture, a missing or ill-typed field, or
            a field that asks for something this drafter does not compute.
    """
    path = folder / "config.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check the drafter's folder"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"is not valid JSON ({error})", where=str(path), fix="download it again"
        ) from error
    if not isinstance(table, dict):
        raise CheckpointError("is not a JSON object", where=str(path), fix="download it again")
    return parse_config(table, str(path))


def parse_config(table: dict[str, Any], where: str) -> DFlash2Config:
    """Turn a config table into the checked record; `where` names it in errors."""
    special = table.get("dflash_config")
    if not isinstance(special, dict) or "selector_rank" not in special:
        raise CheckpointError(
            "has no dflash_config with a selector", where=where, fix="give a DFlash2 checkpoint"
        )
    fields = {**table, **special}
    rope = fields.get("rope_parameters") or {}
    if fields.get("rope_scaling") or rope.get("rope_type", "default") != "default":
        raise CheckpointError(
            "asks for scaled rotary positions", where=where, fix="use a drafter with default rope"
        )
    try:
        layers = int(fields["num_hidden_layers"])
        types = tuple(fields.get("layer_types") or ["full_attention"] * layers)
        config = DFlash2Config(
            **{name: int(fields[name]) for name in _INTEGERS},
            num_hidden_layers=layers,
            head_dim=int(
                fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
            ),
            rms_norm_eps=float(fields["rms_norm_eps"]),
            rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else fields["rope_theta"]),
            layer_types=types,
            sliding_window=fields.get("sliding_window"),
            is_causal=_causality(table, special, types),
            target_layer_ids=tuple(int(layer) for layer in fields["target_layer_ids"]),
            output_multiplier=float(fields.get("output_multiplier") or 1.0),
            final_logit_softcapping=fields.get("final_logit_softcapping"),
            input_embedding_scale=float(fields.get("input_embedding_scale") or 1.0),
        )
    except KeyError as error:
        raise CheckpointError(
            f"lacks the field {error}", where=where, fix="give a complete config.json"
        ) from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"holds a field of a wrong type ({error})", where=where, fix="correct config.json"
        ) from error
    _check(config, where)
    return config


_INTEGERS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "num_target_layers",
    "block_size",
    "conv_kernel_size",
    "conv_group_size",
    "mask_token_id",
    "selector_rank",
    "selector_top_k",
)


def _causality(
    table: dict[str, Any], special: dict[str, Any], types: tuple[str, ...]
) -> tuple[bool, ...]:
    for explicit in (table.get("is_causal"), special.get("is_causal"), special.get("causal")):
        if explicit is not None:
            return (bool(explicit),) * len(types)
    # Checkpoints older than the field were trained with causal windows and bidirectional full
    # layers; reading them otherwise costs acceptance silently.
    return tuple(kind == "sliding_attention" for kind in types)


def _check(config: DFlash2Config, where: str) -> None:
    faults = {
        "layer_types must name every layer": len(config.layer_types) == config.num_hidden_layers,
        "sliding layers need sliding_window": config.sliding_window is not None
        or "sliding_attention" not in config.layer_types,
        "layer_types knows full_attention and sliding_attention": set(config.layer_types)
        <= {"full_attention", "sliding_attention"},
        "conv_group_size must divide hidden_size": config.hidden_size % config.conv_group_size == 0,
        "num_key_value_heads must divide num_attention_heads": config.num_attention_heads
        % config.num_key_value_heads
        == 0,
        "target_layer_ids must lie below the last target layer": all(
            0 <= layer < config.num_target_layers - 1 for layer in config.target_layer_ids
        ),
        "target_layer_ids must not be empty": bool(config.target_layer_ids),
        "selector_top_k must lie in 1..vocab_size": 1 <= config.selector_top_k <= config.vocab_size,
        "block_size must be at least 2": config.block_size >= 2,
    }
    for rule, holds in faults.items():
        if not holds:
            raise CheckpointError(rule, where=where, fix="correct config.json")

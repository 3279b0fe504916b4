"""What differs between the supported families, read from the configuration alone.

Families: Llama, Qwen2, Qwen3, Gemma 3 (text) and the Qwen3.5 hybrid (text).
"""

from dataclasses import dataclass

import torch
from torch import nn

from specengine.errors import CheckpointError
from specengine.models.cache import DeltaShape, KeyValueShape

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "qwen3_5_text")
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "proportional")
"""Rotary types whose angles do not depend on the length of the sequence seen so far."""

Rotary = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and layer kinds of a target.

    Attributes:
        kinds: per decoder layer `full_attention`, `sliding_attention` or `linear_attention`.
        attention: sizes of the attention layers.
        groups: query heads per key head.
        delta: sizes of the recurrent layers, all zero where there are none.
        rotary_by_kind: whether the rotary table depends on the layer's kind.
        rotary_axes: position axes of the rotary table; text advances all of them alike.
    """

    kinds: tuple[str, ...]
    attention: KeyValueShape
    groups: int
    delta: DeltaShape
    rotary_by_kind: bool
    rotary_axes: int

    def rotary(
        self, module: nn.Module, hidden: torch.Tensor, positions: torch.Tensor
    ) -> dict[str, Rotary]:
        """Cosines and sines by layer kind, computed once per distinct table."""
        if self.rotary_axes > 1:
            positions = positions.expand(self.rotary_axes, 1, -1)
        if not self.rotary_by_kind:
            return dict.fromkeys(self.kinds, module(hidden, positions))
        return {kind: module(hidden, positions, kind) for kind in set(self.kinds)}


def layout_of(config: object) -> Layout:
    """Read the layout of a Transformers text configuration.

    Raises:
        CheckpointError: the family, its rotary type or its attention direction is not supported.
    """
    family = getattr(config, "model_type", "unknown")
    if family not in FAMILIES:
        raise CheckpointError(
            f"model type '{family}' is not supported",
            where="config.json",
            fix=f"use one of {', '.join(FAMILIES)}",
        )
    _check_supported(config)
    layers = config.num_hidden_layers
    kinds = tuple(getattr(config, "layer_types", None) or ["full_attention"] * layers)
    attending = tuple(i for i, kind in enumerate(kinds) if kind != "linear_attention")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Layout(
        kinds=kinds,
        attention=KeyValueShape(attending, key_heads, width),
        groups=heads // key_heads,
        delta=_delta_shape(config, kinds),
        rotary_by_kind=family == "gemma3_text",
        rotary_axes=3 if family == "qwen3_5_text" else 1,
    )


def _delta_shape(config: object, kinds: tuple[str, ...]) -> DeltaShape:
    recurring = tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention")
    if not recurring:
        return DeltaShape((), channels=0, taps=1, heads=0, key_width=0, value_width=0)
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    return DeltaShape(
        recurring,
        channels=2 * keys + values,
        taps=config.linear_conv_kernel_dim,
        heads=config.linear_num_value_heads,
        key_width=config.linear_key_head_dim,
        value_width=config.linear_value_head_dim,
    )


def _check_supported(config: object) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    tables = [t for t in parameters.values() if isinstance(t, dict)] or [parameters]
    for table in tables:
        kind = table.get("rope_type", "default")
        if kind not in STATIC_ROPE:
            raise CheckpointError(
                f"rotary type '{kind}' changes angles with the length of the sequence",
                where="config.json",
                fix=f"use a checkpoint with one of {', '.join(STATIC_ROPE)}",
            )
    if getattr(config, "use_bidirectional_attention", False):
        raise CheckpointError(
            "attention is bidirectional", where="config.json", fix="use a causal language model"
        )

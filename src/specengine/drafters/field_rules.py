"""Types and ranges of a drafter's published fields, checked before anything is built from them.

A size that is text, half a token or true would otherwise be rounded to some number without a word,
and a NaN would end in scores that only show as low acceptance.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from specengine.errors import CheckpointError
from specengine.models.configuration import (
    LARGEST,
    are_rotary,
    is_flag,
    is_positive,
    is_size,
    shown,
)

Rule = tuple[Callable[[Any], bool], str]
MOST_ROWS = 256
"""Of a draft: as many as a verify pass takes."""
_LAYER = re.compile(r"layers\.(\d{1,9})\.")
_FIX = "correct it, or download the checkpoint again"


def check_fields(fields: Mapping[str, Any], names: Collection[str], where: str) -> None:
    """Check the fields that are there; what is absent or null is left to its reader.

    Args:
        fields: all of a configuration's fields at one level.
        names: canonical names of the checkpoint's tensors; empty when they are not known.
        where: names the configuration in errors.

    Raises:
        CheckpointError: naming the first field of a wrong type, out of its range, or contradicted
            by the tensors.
    """
    for name, (holds, allowed) in _RULES.items():
        value = fields.get(name)
        if value is not None and not holds(value):
            raise _wrong(name, value, allowed, where)
    held = {int(found[1]) for name in names if (found := _LAYER.match(name))}
    layers = fields.get("num_hidden_layers")
    # Building some millions of layers would take hours to fail.
    if held and layers is not None and layers != max(held) + 1:
        raise _wrong("num_hidden_layers", layers, f"{max(held) + 1}, as in the shards", where)


def _wrong(name: str, value: object, allowed: str, where: str) -> CheckpointError:
    return CheckpointError(f"{name} is {shown(value)}: it must be {allowed}", where=where, fix=_FIX)


def _is_count(value: Any) -> bool:
    return is_size(value) or (type(value) is int and value == 0)


def _are_layers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(layer) is int for layer in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(kind, str) for kind in value)


_SIZE: Rule = (is_size, f"a whole number from 1 to {LARGEST}")
_COUNT: Rule = (_is_count, f"a whole number from 0 to {LARGEST}")
_ROWS: Rule = (lambda value: is_size(value) and value <= MOST_ROWS, f"from 1 to {MOST_ROWS}")
_POSITIVE: Rule = (is_positive, "a finite number above 0")
_FLAG: Rule = (is_flag, "true or false")
_ROTARY: Rule = (are_rotary, "an object of finite numbers, factors and theta above 0")
_LAYERS: Rule = (_are_layers, "a list of layers")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "vocab_size",
            "max_position_embeddings",
            "num_target_layers",
            "target_hidden_size",
            "draft_vocab_size",
            "conv_kernel_size",
            "conv_group_size",
            "selector_rank",
            "selector_top_k",
            "sliding_window",
            "swa_window_size",
        ),
        _SIZE,
    ),
    **dict.fromkeys(("block_size", "ttt_length"), _ROWS),
    "head_dim": (lambda value: is_size(value) and value % 2 == 0, "an even number from 2"),
    # A DFlash configuration may say that it has no Markov head so.
    **dict.fromkeys(("markov_rank", "mask_token_id"), _COUNT),
    **dict.fromkeys(
        ("rms_norm_eps", "rope_theta", "output_multiplier", "input_embedding_scale"), _POSITIVE
    ),
    "final_logit_softcapping": (
        lambda value: is_positive(value) or value == 0,
        "a finite number from 0",
    ),
    **dict.fromkeys(
        (
            "attention_bias",
            "causal",
            "confidence_head_with_markov",
            "enable_confidence_head",
            "fc_norm",
            "is_causal",
            "norm_before_fc",
            "norm_before_residual",
            "norm_output",
            "qk_norm",
            "sample_from_anchor",
            "sliding_window_non_causal",
            "tie_word_embeddings",
            "use_swa",
        ),
        _FLAG,
    ),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), _ROTARY),
    **dict.fromkeys(
        ("aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "target_layer_ids"),
        _LAYERS,
    ),
    "layer_types": (_are_names, "a list of names"),
}

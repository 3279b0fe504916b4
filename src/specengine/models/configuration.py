"""What a target's `config.json` must say before Transformers reads it.

Transformers takes its own default where a key is absent, and fails far from the cause where a value
makes no sense. Here every key that decides a shape or a number of the model is checked first; the
error names the file, the key, the value and what is allowed.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers.activations import ACT2FN

from specengine.errors import CheckpointError
from specengine.shards import is_there, read_json

Table = dict[str, Any]
Rule = tuple[Callable[[Any], bool], str]

LARGEST = 2**31 - 1
_REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)
LAYER = re.compile(r"model\.layers\.(\d{1,9})\.")
"""How names of a text model's layers begin."""
_ROTARY = frozenset(
    (
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "partial_rotary_factor",
    )
)
_FIX = "correct it, or download the checkpoint again"


def check_config(folder: Path, stored: Iterable[str] = ()) -> None:
    """Check `config.json` and `generation_config.json` of a checkpoint folder.

    Args:
        stored: names of the checkpoint's tensors, as the text model spells them.

    Raises:
        CheckpointError: a file is unreadable, the checkpoint is quantized, or a key is missing, of
            a wrong type, out of its range, or contradicted by the tensors.
    """
    path = folder / "config.json"
    whole = read_json(path)
    text = whole.get("text_config", whole)
    if not isinstance(text, dict):
        raise _wrong(path, "text_config", text, "an object")
    for table in (whole, text):
        _check_unquantized(path, table)
    if not isinstance(whole.get("model_type"), str):
        raise _wrong(path, "model_type", whole.get("model_type"), "a family's name")
    for key in _REQUIRED:
        # A text model inside a multimodal one may leave out what is its family's default.
        if text is whole and text.get(key) is None:
            raise _wrong(path, key, text.get(key), "a whole number from 1")
    for table in (whole, text):
        _check_keys(path, table)
    _check_heads(path, text)
    _check_layers(path, text)
    _check_count(path, text, stored)
    generation = folder / "generation_config.json"
    if is_there(generation):
        _check_key(generation, "eos_token_id", read_json(generation))


def _check_unquantized(path: Path, table: Table) -> None:
    quantized = table.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise CheckpointError(
            f"quantization_config: the weights are quantized ({shown(method)})",
            where=str(path),
            fix="use the checkpoint in bfloat16 or float32 that this one was made from",
        )


def _check_keys(path: Path, table: Table) -> None:
    for key in _RULES:
        _check_key(path, key, table)


def _check_key(path: Path, key: str, table: Table) -> None:
    holds, allowed = _RULES[key]
    value = table.get(key)
    if value is None and key not in _REQUIRED:
        return
    if key in table and not holds(value):
        raise _wrong(path, key, value, allowed)


def _check_heads(path: Path, text: Table) -> None:
    heads, hidden = text.get("num_attention_heads"), text.get("hidden_size")
    key_heads = text.get("num_key_value_heads")
    if heads is not None and key_heads is not None and heads % key_heads:
        raise _wrong(path, "num_key_value_heads", key_heads, f"a divisor of {heads} heads")
    if None in (heads, hidden) or text.get("head_dim") is not None:
        return
    if hidden % heads or (hidden // heads) % 2:
        raise _wrong(
            path, "hidden_size", hidden, f"{heads} heads of an even width, or a head_dim is needed"
        )


def _check_layers(path: Path, text: Table) -> None:
    kinds, layers = text.get("layer_types"), text.get("num_hidden_layers")
    if kinds is None or layers is None:
        return
    if len(kinds) != layers:
        raise _wrong(path, "layer_types", kinds, f"{layers} kinds, one per layer")
    if "sliding_attention" in kinds and "sliding_window" in text and not text["sliding_window"]:
        raise _wrong(path, "sliding_window", text["sliding_window"], "a number of positions")


def _check_count(path: Path, text: Table, stored: Iterable[str]) -> None:
    """Compare the number of layers: building some millions of them would take hours to fail."""
    held = {int(found[1]) for name in stored if (found := LAYER.match(name))}
    layers = text.get("num_hidden_layers")
    if held and layers is not None and layers != max(held) + 1:
        raise _wrong(path, "num_hidden_layers", layers, f"{max(held) + 1}, as in the shards")


def are_rotary(value: Any) -> bool:
    """Numbers of rotary positions, in one table or in one for each kind of layer."""
    if not isinstance(value, dict):
        return False
    return all(
        are_rotary(held)
        if isinstance(held, dict)
        else is_positive(held)
        if key in _ROTARY
        else not isinstance(held, float) or math.isfinite(held)
        for key, held in value.items()
        if held is not None
    )


def is_size(value: Any) -> bool:
    """A whole number that a size can be."""
    return type(value) is int and 1 <= value <= LARGEST


def is_positive(value: Any) -> bool:
    """A finite number above 0."""
    return type(value) in (int, float) and 0 < value < math.inf


def is_flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def _is_activation(value: Any) -> bool:
    return isinstance(value, str) and value in ACT2FN


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype)


def _are_stops(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return all(type(token) is int and 0 <= token <= LARGEST for token in ids)


def _are_kinds(value: Any) -> bool:
    known = ("full_attention", "sliding_attention", "linear_attention")
    return isinstance(value, list) and all(kind in known for kind in value)


_SIZE: Rule = (is_size, f"a whole number from 1 to {LARGEST}")
_POSITIVE: Rule = (is_positive, "a finite number above 0")
_FLAG: Rule = (is_flag, "true or false")
_ROTARY_TABLE: Rule = (are_rotary, "an object of finite numbers, factors and theta above 0")
_ACTIVATION: Rule = (_is_activation, "the name of an activation, such as 'silu'")
_DTYPE: Rule = (_is_dtype, "the name of a dtype, such as 'bfloat16'")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_REQUIRED, _SIZE),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "max_position_embeddings",
            "sliding_window",
            "linear_conv_kernel_dim",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
        ),
        _SIZE,
    ),
    "head_dim": (lambda value: is_size(value) and value % 2 == 0, "an even number from 2"),
    **dict.fromkeys(
        (
            "rms_norm_eps",
            "rope_theta",
            "rope_local_base_freq",
            "query_pre_attn_scalar",
            "final_logit_softcapping",
            "attn_logit_softcapping",
        ),
        _POSITIVE,
    ),
    **dict.fromkeys(
        ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"), _FLAG
    ),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), _ROTARY_TABLE),
    **dict.fromkeys(("hidden_act", "hidden_activation"), _ACTIVATION),
    **dict.fromkeys(("dtype", "torch_dtype"), _DTYPE),
    "layer_types": (_are_kinds, "a list of full_, sliding_ and linear_attention"),
    "eos_token_id": (_are_stops, "a token id or a list of them"),
}


def _wrong(path: Path, key: str, value: object, allowed: str) -> CheckpointError:
    problem = "is missing" if value is None else f"is {shown(value)}"
    return CheckpointError(f"{key} {problem}: it must be {allowed}", where=str(path), fix=_FIX)


def shown(value: object) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

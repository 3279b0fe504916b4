"""Sizes of a model's weights by kernel class, from checkpoint headers: no weight is read."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from specpilot.core.errors import WorkloadError
from specpilot.core.numbers import Count
from specpilot.core.record import Record, read_json_object

FOLDER_FIX = "give the model's folder"

_UNREAD = frozenset({"visual", "vision_tower", "multi_modal_projector", "audio_tower", "mtp"})
"""Parts of checkpoint names that text decoding does not read."""


class ModelShape(Record):
    """What one pass must read and compute, for floors."""

    matrix_parameters: Count
    """Parameters of weight matrices that every row multiplies, the LM head excluded."""
    head_parameters: Count
    """LM head (the tied embedding where there is no own one)."""
    vector_parameters: Count
    """Norms, biases and other one-dimensional weights."""
    weight_bytes: Count
    """Bytes per parameter as served."""
    layers: Count
    hidden: Count
    attention_width: Count
    """Query heads times head size, of one attention layer."""
    attention_layers: Count
    sliding_layers: Count = 0
    """Attention layers that see only a window."""
    window: Count = 0
    """Positions that a sliding layer sees."""
    kv_bytes_per_token: Count
    """K and V of all attention layers for one position."""
    state_bytes: Count
    """Recurrent FP32 state of all linear-attention layers."""
    recurrent_layers: Count


def target_shape(folder: Path, dtype: str) -> ModelShape:
    """Shape of a target from its `config.json` and safetensors headers.

    Of a multimodal checkpoint the text model counts, without its multi-token prediction layers:
    decoding reads nothing else.

    Raises:
        WorkloadError: no readable configuration or checkpoint, or not one of a decoder.
    """
    config = read_json_object(folder / "config.json", WorkloadError, FOLDER_FIX)
    text = config.get("text_config", config)
    tensors = {
        name: shape
        for name, shape in tensor_shapes(folder).items()
        if not _UNREAD.intersection(name.split("."))
    }
    embedding, head = _size(tensors, "embed_tokens.weight"), _size(tensors, "lm_head.weight")
    vectors = sum(prod(shape) for shape in tensors.values() if len(shape) < 2)
    widths = [shape[-1] for name, shape in tensors.items() if _is(name, "self_attn.o_proj")]
    cached = [
        shape[0]
        for name, shape in tensors.items()
        if _is(name, "self_attn.k_proj") or _is(name, "self_attn.v_proj")
    ]
    try:
        layers, hidden = int(text["num_hidden_layers"]), int(text["hidden_size"])
    except KeyError as error:
        raise WorkloadError(
            f"has no key {error}", where=str(folder / "config.json"), fix="give a decoder's folder"
        ) from error
    item = 2 if dtype == "bfloat16" else 4
    kinds = _layer_kinds(text, layers)
    recurrent = kinds.count("linear_attention")
    return ModelShape(
        matrix_parameters=sum(map(prod, tensors.values())) - embedding - head - vectors,
        head_parameters=head or embedding,
        vector_parameters=vectors,
        weight_bytes=item,
        layers=layers,
        hidden=hidden,
        attention_width=max(widths, default=0),
        attention_layers=len(widths),
        sliding_layers=kinds.count("sliding_attention"),
        window=int(text.get("sliding_window") or 0),
        kv_bytes_per_token=sum(cached) * item,
        state_bytes=_state_bytes(text) * recurrent,
        recurrent_layers=recurrent,
    )


def drafter_parameters(folder: Path) -> int:
    """Weights that one draft reads whole; codebooks are gathered by row and not counted.

    Raises:
        WorkloadError: no readable checkpoint.
    """
    return sum(
        prod(shape) for name, shape in tensor_shapes(folder).items() if "codebook" not in name
    )


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in the folder's safetensors files.

    Raises:
        WorkloadError: no such file, or a header that cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        try:
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
        except (OSError, ValueError, struct.error) as error:
            raise WorkloadError(
                f"has no readable header ({error})", where=str(path), fix="download it again"
            ) from error
        for name, entry in header.items():
            if name != "__metadata__":
                shapes[name] = tuple(int(size) for size in entry["shape"])
    if not shapes:
        raise WorkloadError(
            "holds no safetensors file", where=str(folder), fix="give the model's folder"
        )
    return shapes


def _is(name: str, module: str) -> bool:
    return name.endswith(f"{module}.weight")


def _size(tensors: dict[str, tuple[int, ...]], name: str) -> int:
    return sum(prod(shape) for key, shape in tensors.items() if key.endswith(name))


def _layer_kinds(text: dict[str, Any], layers: int) -> list[str]:
    """Kind of each layer; older Gemma configurations give only every how many is not sliding."""
    kinds = text.get("layer_types")
    if kinds:
        return [str(kind) for kind in kinds]
    if "gemma3" in str(text.get("model_type")):
        every = int(text.get("sliding_window_pattern", 6))
        return ["full" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    return ["full"] * layers


def _state_bytes(text: dict[str, Any]) -> int:
    """FP32 bytes of one recurrent layer: a key by value matrix per head, and the convolution's
    last inputs."""
    keys = int(text.get("linear_key_head_dim", 0))
    values = int(text.get("linear_value_head_dim", 0))
    key_heads = int(text.get("linear_num_key_heads", 0))
    value_heads = int(text.get("linear_num_value_heads", 0))
    channels = 2 * key_heads * keys + value_heads * values
    kept = max(int(text.get("linear_conv_kernel_dim", 1)) - 1, 0)
    return 4 * (value_heads * keys * values + channels * kept)

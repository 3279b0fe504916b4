"""Sizes of a model's weights by kernel class, from checkpoint headers: no weight is read."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from specpilot.core.errors import WorkloadError
from specpilot.core.numbers import Count
from specpilot.core.record import Record


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
    heads: Count
    head_size: Count
    kv_bytes_per_token: Count
    """K and V of all attention layers for one position."""
    state_bytes: Count
    """Recurrent FP32 state of all linear-attention layers."""
    recurrent_layers: Count


def target_shape(folder: Path, dtype: str) -> ModelShape:
    """Shape of a target from its `config.json` and safetensors headers.

    Raises:
        WorkloadError: no readable configuration or checkpoint.
    """
    config = _config(folder)
    text = config.get("text_config", config)
    matrices = head = vectors = embedding = 0
    for name, shape in tensor_shapes(folder).items():
        size = prod(shape)
        if name.endswith("embed_tokens.weight"):
            embedding = size
        elif name.endswith("lm_head.weight"):
            head = size
        elif len(shape) >= 2:
            matrices += size
        else:
            vectors += size
    layers = int(text["num_hidden_layers"])
    kinds = text.get("layer_types") or ["full_attention"] * layers
    recurrent = sum(kind == "linear_attention" for kind in kinds)
    heads = int(text["num_attention_heads"])
    head_size = int(text.get("head_dim") or text["hidden_size"] // heads)
    kv_heads = int(text.get("num_key_value_heads", heads))
    item = 2 if dtype == "bfloat16" else 4
    state = (
        int(text.get("linear_num_value_heads", 0))
        * int(text.get("linear_key_head_dim", 0))
        * int(text.get("linear_value_head_dim", 0))
        * 4
    )
    return ModelShape(
        matrix_parameters=matrices,
        head_parameters=head or embedding,
        vector_parameters=vectors,
        weight_bytes=item,
        layers=layers,
        hidden=int(text["hidden_size"]),
        heads=heads,
        head_size=head_size,
        kv_bytes_per_token=2 * (layers - recurrent) * kv_heads * head_size * item,
        state_bytes=state * recurrent,
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


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkloadError(
            f"cannot be read ({error})", where=str(path), fix="give the model's folder"
        ) from error
    return config

"""Lossless weights in Transformers models: `compress` one, or `load` an encoded folder.

Layers compute from their records on a GPU; a CPU decodes each weight on each call, which proves
that nothing changed and is slow.
"""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from specengine.errors import CheckpointError, OptionError
from specengine.integrations.packed_module import PackedLinear, replace_linears, require_format
from specengine.weights import encode
from specengine.weights.reader import EncodedFolder


def compress(model: nn.Module, format: str = "w12") -> nn.Module:
    """Pack the weights of a model's bfloat16 linear layers, in place, where that is smaller.

    Embeddings, norms and layers of other dtypes stay. `model.state_dict()` holds the same bits
    under the same names as before.

    Returns:
        The model.

    Raises:
        OptionError: unknown format, or a model without a bfloat16 linear layer.
    """
    require_format(format)

    def pack(name: str, layer: nn.Linear) -> nn.Module | None:
        if layer.weight.dtype != torch.bfloat16:
            return None
        packed = encode(layer.weight, format)
        return PackedLinear(packed, layer.bias) if packed.nbytes < layer.weight.nbytes else None

    if replace_linears(model, pack) == 0:
        raise OptionError(
            "has no bfloat16 linear layer that packing would make smaller",
            where=type(model).__name__,
            fix="load it with dtype=torch.bfloat16",
        )
    return model


def load(folder: Path | str, *, device: str = "cpu") -> PreTrainedModel:
    """A causal model from a folder that `specpilot weights encode` wrote.

    Linear layers keep their records; everything else is decoded to what it was.

    Raises:
        CheckpointError: the folder is incomplete, or its tensors are not the model's.
    """
    stored = EncodedFolder(Path(folder))
    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    names = set(stored.manifest.tensors)
    taken: set[str] = set()

    def pack(name: str, layer: nn.Linear) -> nn.Module | None:
        key = name + ".weight"
        if key not in names or stored.manifest.tensors[key].format not in ("w12", "w11s"):
            return None
        _same_shape(key, stored.manifest.tensors[key].shape, layer.weight, stored.folder)
        taken.add(key)
        return PackedLinear(stored.packed(key).to(device), layer.bias)

    replace_linears(model, pack)
    for name, parameter in model.named_parameters():
        if name in names:
            _same_shape(name, stored.manifest.tensors[name].shape, parameter, stored.folder)
            parameter.data = stored.tensor(name).to(device)
            taken.add(name)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    missing = {name for name, _ in model.named_parameters()} - taken - tied
    if missing:
        raise CheckpointError(
            f"lacks {len(missing)} tensors, the first is {min(missing)}",
            where=str(folder),
            fix="encode the folder that config.json belongs to",
        )
    return model.to(device).eval()


def _same_shape(name: str, found: list[int], wanted: torch.Tensor, folder: Path) -> None:
    if tuple(found) != tuple(wanted.shape):
        raise CheckpointError(
            f"tensor {name} has shape {tuple(found)}, config.json asks for {tuple(wanted.shape)}",
            where=str(folder),
            fix="encode the folder that config.json belongs to",
        )

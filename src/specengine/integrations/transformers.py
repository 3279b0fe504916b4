"""Lossless weights in Transformers models: `compress` one, or `load` an encoded folder.

Layers compute from their records on a GPU; a CPU decodes each weight on each call, which proves
that nothing changed and is slow.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import GENERATION_CONFIG_NAME

from specengine.errors import CheckpointError, OptionError
from specengine.integrations.packed_module import (
    FORMATS,
    PackedLinear,
    replace_linears,
    require_format,
)
from specengine.weights import encode
from specengine.weights.reader import EncodedFolder
from specengine.weights.registry import WIDEST

_NUMBERS = {torch.bfloat16, torch.float16, torch.float32, torch.float64}


def compress(model: nn.Module, format: str = "w12") -> nn.Module:
    """Pack the weights of a model's bfloat16 linear layers, in place, where that is smaller.

    Embeddings, norms, layers of other dtypes and layers with hooks stay. `model.state_dict()` holds
    the same bits under the same names as before. The model goes on computing in bfloat16.

    Returns:
        The model.

    Raises:
        OptionError: unknown format, a model that is compressed already or not loaded yet, or one
            without a bfloat16 linear layer.
    """
    require_format(format)
    _require_fresh(model)

    def pack(name: str, layer: nn.Linear) -> nn.Module | None:
        fits = layer.weight.numel() > 0 and layer.in_features <= WIDEST
        if layer.weight.dtype != torch.bfloat16 or not fits:
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


def _require_fresh(model: nn.Module) -> None:
    where = type(model).__name__
    for layer in model.modules():
        if isinstance(layer, PackedLinear):
            fix = "load the model again for another format"
            raise OptionError(f"is compressed already, as {layer.format}", where=where, fix=fix)
        if isinstance(layer, nn.Linear) and layer.weight.is_meta:
            fix = "load its weights onto a device first"
            raise OptionError("has layers on the meta device", where=where, fix=fix)


def load(folder: Path | str, *, device: str = "cpu") -> PreTrainedModel:
    """A causal model in bfloat16 from a folder that `specpilot weights encode` wrote.

    Linear layers keep their records; everything else is decoded to what it was.

    Raises:
        CheckpointError: the folder is incomplete, or its tensors are not the model's.
    """
    stored = EncodedFolder(Path(folder))
    config = AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    names = set(stored.manifest.tensors)
    halves = {key for pair in _ties(model) if not names.issuperset(pair) for key in pair}
    packed: set[str] = set()

    def pack(name: str, layer: nn.Linear) -> nn.Module | None:
        key = name + ".weight"
        # One that another parameter is tied to, which is not stored, must stay a parameter.
        if key not in names - halves or stored.manifest.tensors[key].format not in FORMATS:
            return None
        _same_shape(key, stored.manifest.tensors[key].shape, layer.weight, stored.folder)
        packed.add(key)
        return PackedLinear(stored.packed(key).to(device), layer.bias)

    replace_linears(model, pack)
    _untie(model, names, packed)
    missing = _fill(model, stored, device)
    model.tie_weights(missing_keys=missing, recompute_mapping=False)
    if missing:
        raise CheckpointError(
            f"lacks {len(missing)} tensors, the first is {min(missing)}",
            where=str(folder),
            fix="encode the folder that config.json belongs to",
        )
    if (stored.folder / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval()


def _ties(model: PreTrainedModel) -> list[tuple[str, str]]:
    """Names of parameters that share memory: the one that is tied, and to which."""
    return [*model.all_tied_weights_keys.items()]


def _untie(model: PreTrainedModel, names: set[str], packed: set[str]) -> None:
    """Give parameters memory of their own where a folder holds both of a tie: they may differ."""
    for target, source in _ties(model):
        if packed & {target, source}:
            del model.all_tied_weights_keys[target]
        elif names.issuperset((target, source)):
            parent, _, name = target.rpartition(".")
            own = nn.Parameter(torch.empty_like(model.get_parameter(target)))
            setattr(model.get_submodule(parent), name, own)


def _fill(model: nn.Module, stored: EncodedFolder, device: str) -> set[str]:
    """Decode what is not packed; returns the names of what the folder does not hold."""
    filled = set()
    for name, tensor in _stored_tensors(model):
        if name in stored.manifest.tensors:
            _same_shape(name, stored.manifest.tensors[name].shape, tensor, stored.folder)
            tensor.data = _cast(stored.tensor(name), tensor, name).to(device)
            filled.add(tensor)
    return {name for name, tensor in _stored_tensors(model) if tensor not in filled}


def _stored_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a checkpoint of the model may hold besides packed weights, by all of its names:
    parameters, and buffers that belong to its state."""
    yield from model.named_parameters(remove_duplicate=False)
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


def _cast(found: torch.Tensor, wanted: torch.Tensor, name: str) -> torch.Tensor:
    """Numbers of another precision as the model computes with them, like Transformers does.

    Raises:
        CheckpointError: they mean something only together with scales.
    """
    if found.dtype != wanted.dtype and not {found.dtype, wanted.dtype} <= _NUMBERS:
        raise CheckpointError(
            f"has the dtype {found.dtype}, the model computes with {wanted.dtype}",
            where=name,
            fix="encode a checkpoint that is not quantized",
        )
    return found.to(wanted.dtype)


def _same_shape(name: str, found: list[int], wanted: torch.Tensor, folder: Path) -> None:
    if tuple(found) != tuple(wanted.shape):
        raise CheckpointError(
            f"tensor {name} has shape {tuple(found)}, config.json asks for {tuple(wanted.shape)}",
            where=str(folder),
            fix="encode the folder that config.json belongs to",
        )

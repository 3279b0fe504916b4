"""Load a target from a checkpoint folder, strictly.

Every tensor of the model comes from the checkpoint, has the shape the configuration says, and is
finite; anything else is an error that names the tensor. Tensors of the checkpoint that the text
model does not use (vision towers, multi-token prediction heads) are left out.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from specengine.decoding.options import EngineOptions
from specengine.errors import CheckpointError, OptionError
from specengine.models.configuration import LAYER, check_config
from specengine.models.families import layout_of
from specengine.models.target import Target
from specengine.shards import is_there, read_json, shard_headers

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_CONFIG_FAILURES = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    OSError,
    StrictDataclassError,
)
"""What Transformers ends with when keys that only it reads make no sense together."""
_STORED_DTYPES = ("BF16", "F16", "F32", "F64")
_COMPOSITE_NAMES = {r"^model\.language_model\.": "model.", r"^language_model\.": ""}
"""Names of a text model inside a multimodal checkpoint, as the text model alone spells them."""


def load_target(
    folder: Path | str,
    *,
    device: str = "cpu",
    dtype: str = "bfloat16",
    options: EngineOptions | None = None,
    taps: Sequence[int] = (),
) -> Target:
    """Load a target model.

    Args:
        folder: Hugging Face style checkpoint with safetensors shards.
        device: `cpu`, or one GPU such as `cuda:0`.
        dtype: `bfloat16` or `float32`; weights are converted once, at load.
        options: weight layouts of the system.
        taps: decoder layers whose outputs a drafter reads.

    Raises:
        CheckpointError: the folder, a shard, a tensor or the architecture is unusable.
        OptionError: unknown dtype, absent device, or an option that this machine cannot serve.
    """
    folder = Path(folder)
    stored = _stored_dtypes(folder)
    config = _text_config(folder, stored)
    layout_of(config)
    _check_placement(device, dtype)
    model = _read_model(folder, config, _DTYPES[dtype])
    _check_stored(stored, model, folder)
    _check_finite(model, folder)
    if device == "cpu":
        _own_weights(model)
    model.to(device)
    return Target(model, taps=taps, options=options, eos_token_ids=_eos_of(folder, config))


def _check_placement(device: str, dtype: str) -> None:
    if dtype not in _DTYPES:
        raise OptionError(
            f"'{dtype}' is not a dtype of the engine",
            where="dtype",
            fix=f"use {' or '.join(_DTYPES)}",
        )
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise OptionError(
            f"device '{device}' is not available", where="device", fix="use cpu, or a GPU that is"
        )


def _stored_dtypes(folder: Path) -> dict[str, str]:
    """Dtype of each stored tensor, by its name in the text model."""
    found = {}
    for tensors, _ in shard_headers(folder).values():
        for tensor in tensors:
            name = tensor.name
            for pattern, own in _COMPOSITE_NAMES.items():
                name = re.sub(pattern, own, name)
            found[name] = tensor.dtype
    return found


def _check_stored(stored: Mapping[str, str], model: nn.Module, folder: Path) -> None:
    """Refuse weights that are codes of numbers, and layers of another model.

    A tensor that the layers leave unread means that `config.json` describes another model: one with
    fewer layers, without biases or norms, or whose scales nobody applies.
    """
    read = model.state_dict()
    for name, dtype in stored.items():
        if name in read and dtype not in _STORED_DTYPES:
            raise CheckpointError(
                f"tensor {name} is stored as {dtype}",
                where=str(folder),
                fix="use a checkpoint of unquantized weights: "
                f"{', '.join(_STORED_DTYPES[:-1])} or {_STORED_DTYPES[-1]}",
            )
        if name not in read and LAYER.match(name) and not name.endswith("rotary_emb.inv_freq"):
            raise CheckpointError(
                f"tensor {name} is not part of the model that config.json describes",
                where=str(folder),
                fix="check that config.json belongs to these shards",
            )


def _text_config(folder: Path, stored: Iterable[str]) -> PreTrainedConfig:
    check_config(folder, stored)
    try:
        with _quiet_transformers():
            config = AutoConfig.from_pretrained(
                folder,
                local_files_only=True,
                # A checkpoint's own code is never run; unsaid, Transformers asks the terminal.
                trust_remote_code=False,
            )
    except _CONFIG_FAILURES as error:
        raise CheckpointError(
            f"cannot be understood ({_first_line(error)})",
            where=str(folder / "config.json"),
            fix="use a checkpoint of a supported family",
        ) from error
    return config.get_text_config()


def _read_model(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> nn.Module:
    with _quiet_transformers():
        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                key_mapping=_COMPOSITE_NAMES,
                local_files_only=True,
                # Reported below, with the tensor's name, instead of a pointer to a log.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except (*_CONFIG_FAILURES, RuntimeError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot be loaded ({_first_line(error)})",
                where=str(folder),
                fix="check that config.json belongs to these shards",
            ) from error
    _check_complete(report, folder)
    return model


def _check_complete(report: dict[str, Collection], folder: Path) -> None:
    fix = "check that all shards are there and config.json belongs to them"
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise CheckpointError(
            f"tensor {name} has shape {tuple(found)}, config.json asks for {tuple(wanted)}",
            where=str(folder),
            fix=fix,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise CheckpointError(
            f"lacks {len(missing)} tensors, the first is {missing[0]}", where=str(folder), fix=fix
        )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """What Transformers would print about a load, the errors raised here say in one line."""
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _check_finite(model: nn.Module, folder: Path) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        low, high = torch.aminmax(tensor.detach())
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise CheckpointError(
                f"tensor {name} holds non-finite numbers",
                where=str(folder),
                fix="download the checkpoint again, or load it in bfloat16 if it was saved so",
            )


def _own_weights(model: nn.Module) -> None:
    """Copy weights out of the mapped shards: the system may drop pages of a file at any time, and
    a step that reads them back from the disk takes seconds."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.detach().clone()


def _eos_of(folder: Path, config: PreTrainedConfig) -> frozenset[int]:
    found: set[int] = set()
    values = [config.eos_token_id]
    generation = folder / "generation_config.json"
    if is_there(generation):
        values.append(read_json(generation).get("eos_token_id"))
    for value in values:
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(found)


def _first_line(error: Exception) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    # A line that ends so only announces the reason.
    return " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])

"""Reading and writing drafter checkpoints: strict both ways, nothing guessed.

A tensor too many, too few, of another shape, or with a number that is not finite stops the load;
the error names the tensor.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from specengine.drafters.config import AnyConfig, read_config
from specengine.drafters.eagle3_network import Eagle3Network
from specengine.drafters.network import DFlash2Network, DFlashNetwork, DSparkNetwork
from specengine.drafters.published import canonical_name
from specengine.drafters.records import DFlash2Config, DFlashConfig, DSparkConfig
from specengine.drafters.vocabulary import check_map, reachable_tokens
from specengine.errors import CheckpointError
from specengine.shards import INDEX, shard_headers

AnyNetwork = DFlashNetwork | DFlash2Network | DSparkNetwork | Eagle3Network
_WEIGHTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_MAPS = (torch.int64, torch.int32)
"""Dtypes of the maps of tokens."""
_OTHER = "check that config.json belongs to these weights"


def read_drafter(folder: Path) -> tuple[AnyConfig, dict[str, Path]]:
    """What a folder holds: its configuration, and the file of each tensor by its own name.

    Raises:
        CheckpointError: a broken shard, index or configuration, or two names for one tensor.
    """
    files = {
        tensor.name: path
        for path, (tensors, _) in shard_headers(folder).items()
        for tensor in tensors
    }
    spelled: dict[str, str] = {}
    for name in files:
        other = spelled.setdefault(canonical_name(name), name)
        if other != name:
            raise CheckpointError(
                f"holds both '{other}' and '{name}', which are the same tensor",
                where=str(folder),
                fix="download the checkpoint again",
            )
    return read_config(folder, spelled), files


def new_network(config: AnyConfig) -> AnyNetwork:
    """The network of a configuration, with fresh parameters on the current device."""
    if isinstance(config, DFlash2Config):
        return DFlash2Network(config)
    if isinstance(config, DSparkConfig):
        return DSparkNetwork(config)
    if isinstance(config, DFlashConfig):
        return DFlashNetwork(config)
    return Eagle3Network(config)


def load_network(
    config: AnyConfig, files: Mapping[str, Path], dtype: torch.dtype, device: str | torch.device
) -> AnyNetwork:
    """Build a network and fill it from the files of its tensors.

    Raises:
        CheckpointError: see the module.
    """
    with torch.device("meta"):
        network = new_network(config)
    network = network.to_empty(device=device).to(dtype)
    fill(network, files, config)
    return network.eval().requires_grad_(requires_grad=False)


def read_network(folder: Path, dtype: torch.dtype, device: str | torch.device) -> AnyNetwork:
    """Load the network of a folder, without a target to check it against.

    Raises:
        CheckpointError: see the module.
    """
    config, files = read_drafter(folder)
    return load_network(config, files, dtype, device)


def fill(network: nn.Module, files: Mapping[str, Path], config: AnyConfig) -> None:
    """Copy every tensor into `network`, under its canonical name."""
    wanted = dict(network.state_dict())
    reachable: torch.Tensor | None = None
    where = str(next(iter(files.values())).parent)
    for own, path in files.items():
        name, tensor = canonical_name(own), _read(path, own)
        if name in ("d2t", "t2d") and (config.draft_vocab_size is None or name == "t2d"):
            reachable = _map(name, tensor, config, path)
            continue
        target = wanted.pop(name, None)
        if target is None:
            raise CheckpointError(
                f"tensor '{own}' is not part of this drafter", where=str(path), fix=_OTHER
            )
        _check(own, tensor, target, path)
        with torch.no_grad():
            target.copy_(tensor)
    if wanted:
        raise CheckpointError(
            f"tensor '{min(wanted)}' is missing ({len(wanted)} in all)", where=where,
            fix="download every shard of the checkpoint, and check that config.json is its own",
        )  # fmt: skip
    if config.draft_vocab_size is not None:
        offsets = network.get_buffer("d2t")
        check_map(offsets, reachable, config.vocab_size, where)


def _map(name: str, tensor: torch.Tensor, config: AnyConfig, path: Path) -> torch.Tensor:
    """A tensor of the token map that the network does not hold: the mask, or a map of nothing."""
    _check_shape(name, tensor, (config.vocab_size,), path)
    if config.draft_vocab_size is None:
        identity = bool(tensor.bool().all()) if name == "t2d" else not bool(tensor.any())
        if not identity:
            raise CheckpointError(
                f"tensor '{name}' maps tokens, and config.json names no draft_vocab_size",
                where=str(path),
                fix=_OTHER,
            )
    return tensor


def _check(name: str, tensor: torch.Tensor, target: torch.Tensor, path: Path) -> None:
    _check_shape(name, tensor, tuple(target.shape), path)
    if tensor.dtype not in (_WEIGHTS if target.is_floating_point() else _MAPS):
        raise CheckpointError(
            f"tensor '{name}' has dtype {tensor.dtype}", where=str(path),
            fix="use a checkpoint of unquantized weights",
        )  # fmt: skip
    if not torch.isfinite(tensor).all():
        raise CheckpointError(
            f"tensor '{name}' holds non-finite numbers", where=str(path),
            fix="download the checkpoint again, or train with a lower rate",
        )  # fmt: skip


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...], path: Path) -> None:
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"tensor '{name}' has shape {tuple(tensor.shape)}, not {shape}", where=str(path),
            fix=_OTHER,
        )  # fmt: skip


def _read(path: Path, name: str) -> torch.Tensor:
    try:
        with safe_open(path, framework="pt") as handle:
            return handle.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot be read ({error})", where=str(path), fix="download the file again"
        ) from error


def write_network(network: nn.Module, config: AnyConfig, folder: Path, *, shard_bytes: int) -> None:
    """Write config, bfloat16 shards of at most `shard_bytes` each, and their index.

    A token map is written in both directions, as other readers expect it.

    Raises:
        CheckpointError: one tensor alone is larger than a shard, or the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach()
        .to("cpu", torch.bfloat16 if tensor.is_floating_point() else None)
        .contiguous()
        for name, tensor in network.state_dict().items()
    }
    if config.draft_vocab_size is not None:
        tensors["t2d"] = reachable_tokens(tensors["d2t"], config.vocab_size)
    shards = _pack(tensors, shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        try:
            save_file({key: tensors[key] for key in shard}, folder / name, {"format": "pt"})
        except SafetensorError as error:
            raise CheckpointError(
                f"cannot be written ({error})", where=str(folder / name), fix="free disk space"
            ) from error
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {key: n for n, s in zip(names, shards, strict=True) for key in sorted(s)},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    text = json.dumps(config.to_json(), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _pack(tensors: dict[str, torch.Tensor], shard_bytes: int) -> list[list[str]]:
    header = 16384  # safetensors header of a shard, generously
    shards: list[list[str]] = []
    room: list[int] = []
    for name in sorted(tensors, key=lambda key: (-tensors[key].nbytes, key)):
        size = tensors[name].nbytes
        if size > shard_bytes - header:
            raise CheckpointError(
                f"tensor '{name}' needs {size} bytes, more than a shard of {shard_bytes}",
                where="write_network", fix="allow larger shards",
            )  # fmt: skip
        place = next((i for i, left in enumerate(room) if left >= size), None)
        if place is None:
            shards.append([])
            room.append(shard_bytes - header)
            place = len(room) - 1
        shards[place].append(name)
        room[place] -= size
    return shards

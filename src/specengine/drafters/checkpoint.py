"""Reading and writing drafter checkpoints: strict both ways, nothing guessed.

A tensor too many, too few, of another shape, or with a number that is not finite stops the load;
the error names the tensor.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from specengine.drafters.config import DFlash2Config, read_config
from specengine.drafters.network import DFlash2Network
from specengine.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def read_network(folder: Path, dtype: torch.dtype, device: str | torch.device) -> DFlash2Network:
    """Load the network of a DFlash2 folder.

    Raises:
        CheckpointError: see the module.
    """
    config = read_config(folder)
    with torch.device("meta"):
        network = DFlash2Network(config)
    network = network.to_empty(device=device).to(dtype)
    fill(network, folder)
    return network.eval().requires_grad_(requires_grad=False)


def fill(network: nn.Module, folder: Path) -> None:
    """Copy every tensor of `folder` into `network`; names may carry the prefix `model.`."""
    wanted = dict(network.state_dict())
    for name, tensor, path in _tensors(folder):
        target = wanted.pop(name.removeprefix("model."), None)
        if target is None:
            raise CheckpointError(
                f"tensor '{name}' is not part of this drafter", where=str(path),
                fix="check that config.json belongs to these weights",
            )  # fmt: skip
        if tensor.shape != target.shape:
            raise CheckpointError(
                f"tensor '{name}' has shape {tuple(tensor.shape)}, not {tuple(target.shape)}",
                where=str(path),
                fix="check that config.json belongs to these weights",
            )
        if not torch.isfinite(tensor).all():
            raise CheckpointError(
                f"tensor '{name}' holds non-finite numbers", where=str(path),
                fix="download the checkpoint again, or train with a lower rate",
            )  # fmt: skip
        with torch.no_grad():
            target.copy_(tensor)
    if wanted:
        raise CheckpointError(
            f"tensor '{min(wanted)}' is missing ({len(wanted)} in all)", where=str(folder),
            fix="download every shard of the checkpoint",
        )  # fmt: skip


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor, Path]]:
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (not a mapping)
                    yield name, handle.get_tensor(name), path
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot be read ({error})", where=str(path), fix="download the file again"
            ) from error


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if not index.exists():
        return [folder / "model.safetensors"]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"is not a weight index ({error!r})", where=str(index), fix="download it again"
        ) from error
    return [folder / name for name in sorted(names)]


def write_network(
    network: DFlash2Network, config: DFlash2Config, folder: Path, *, shard_bytes: int
) -> None:
    """Write config, bfloat16 shards of at most `shard_bytes` each, and their index.

    Raises:
        CheckpointError: one tensor alone is larger than a shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in network.state_dict().items()
    }
    shards = _pack(tensors, shard_bytes)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file({key: tensors[key] for key in shard}, folder / name, {"format": "pt"})
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

"""Loading a drafter by kind, and checking that it fits its target."""

import difflib
from pathlib import Path
from typing import Protocol

import torch

from specengine.decoding.options import EngineOptions
from specengine.drafters.base import Drafter
from specengine.drafters.checkpoint import read_network
from specengine.drafters.config import DFlash2Config, read_config
from specengine.drafters.dflash2 import DFlash2Drafter, DraftTarget
from specengine.errors import CheckpointError, OptionError
from specengine.models.linear import PrepackedLinear, replace_linear, require_prepacking

KINDS = ("dflash2",)


class HostTarget(DraftTarget, Protocol):
    """A target as loading sees it: what is borrowed, and its shape."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    dtype: torch.dtype
    device: torch.device


def load_drafter(
    kind: str, folder: Path, target: HostTarget, options: EngineOptions | None = None
) -> Drafter:
    """Load the drafter in `folder` for `target`, in the target's dtype and on its device.

    Raises:
        OptionError: unknown kind.
        CheckpointError: the checkpoint is broken or does not fit the target.
    """
    if kind not in KINDS:
        close = difflib.get_close_matches(kind, KINDS, n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"known kinds: {', '.join(KINDS)}"
        raise OptionError(f"unknown drafter kind '{kind}'", where="drafter", fix=fix)
    check_fit(read_config(Path(folder)), target, str(folder))
    network = read_network(Path(folder), target.dtype, target.device)
    if options is not None and options.linear == "prepacked":
        require_prepacking(target.device, target.dtype)
        replace_linear(network, PrepackedLinear)
    return DFlash2Drafter(network, target)


def check_fit(config: DFlash2Config, target: HostTarget, where: str) -> None:
    """Compare the drafter's shape with the target's.

    Raises:
        CheckpointError: naming the first field that disagrees.
    """
    pairs = {
        "hidden_size": (config.hidden_size, target.hidden_size),
        "vocab_size": (config.vocab_size, target.vocab_size),
        "num_target_layers": (config.num_target_layers, target.num_layers),
    }
    for name, (own, theirs) in pairs.items():
        if own != theirs:
            raise CheckpointError(
                f"{name} is {own}, the target's is {theirs}", where=where,
                fix="use the drafter that was trained for this target",
            )  # fmt: skip
    if not 0 <= config.mask_token_id < target.vocab_size:
        raise CheckpointError(
            f"mask_token_id {config.mask_token_id} lies outside the embedding of "
            f"{target.vocab_size} rows",
            where=where,
            fix="use the drafter that was trained for this target",
        )

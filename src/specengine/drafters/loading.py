"""Loading a drafter by its content, and checking that it fits its target."""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from specengine.decoding.options import EngineOptions
from specengine.drafters.base import Drafter
from specengine.drafters.checkpoint import AnyNetwork, load_network, read_drafter
from specengine.drafters.config import AnyConfig, check_taps
from specengine.drafters.dflash import DFlashDrafter
from specengine.drafters.dflash2 import DFlash2Drafter
from specengine.drafters.dspark import DSparkDrafter
from specengine.drafters.eagle3 import Eagle3Drafter
from specengine.drafters.network import DFlash2Network, DFlashNetwork, DSparkNetwork
from specengine.drafters.records import KINDS, BlockConfig, DraftConfig, Eagle3Config
from specengine.drafters.slot_check import tell_slots
from specengine.drafters.vocabulary import DraftTarget
from specengine.errors import CheckpointError, OptionError
from specengine.models.linear import PrepackedLinear, replace_linear, require_prepacking

_FIX = "use the drafter that was trained for this target"


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

    Args:
        kind: what the folder must hold, or `auto` for whatever it holds.
        folder: a checkpoint in any published layout; its content decides how it is read.
        target: the model that it drafts for.
        options: layout of the linear weights.

    Raises:
        OptionError: unknown kind.
        CheckpointError: the checkpoint is broken, of another kind, or does not fit the target.
    """
    known = (*KINDS, "auto")
    if kind not in known:
        close = difflib.get_close_matches(kind, known, n=1)
        fix = f"did you mean '{close[0]}'?" if close else f"known kinds: {', '.join(known)}"
        raise OptionError(f"unknown drafter kind '{kind}'", where="drafter", fix=fix)
    config, files = read_drafter(Path(folder))
    if kind not in ("auto", config.kind):
        raise CheckpointError(
            f"holds a drafter of kind '{config.kind}', not '{kind}'", where=str(folder),
            fix=f"say '{config.kind}', or give another folder",
        )  # fmt: skip
    config = fitted(config, target, str(folder))
    network = load_network(config, files, target.dtype, target.device)
    _share_tables(network, target)
    if isinstance(config, BlockConfig) and config.slots is None:
        slots = tell_slots(lambda s: drafter_of(_with_slots(network, s), target), target, folder)
        network = _with_slots(network, slots)
    if options is not None and options.linear == "prepacked":
        require_prepacking(target.device, target.dtype)
        replace_linear(network, PrepackedLinear)
    return drafter_of(network, target)


def drafter_of(network: AnyNetwork, target: DraftTarget) -> Drafter:
    """The drafter that drives a network."""
    if isinstance(network, DFlash2Network):
        return DFlash2Drafter(network, target)
    if isinstance(network, DSparkNetwork):
        return DSparkDrafter(network, target)
    if isinstance(network, DFlashNetwork):
        return DFlashDrafter(network, target)
    return Eagle3Drafter(network, target)


def fitted(config: AnyConfig, target: HostTarget, where: str) -> AnyConfig:
    """The configuration with the taps that its kind leaves to convention, checked on the target.

    Raises:
        CheckpointError: naming the first field that disagrees with the target.
    """
    check_fit(config, target, where)
    taps = config.target_layer_ids or _usual_taps(config, target.num_layers)
    check_taps(taps, target.num_layers, where)
    return replace(config, target_layer_ids=taps)


def check_fit(config: DraftConfig, target: HostTarget, where: str) -> None:
    """Compare the drafter's shape with the target's.

    Raises:
        CheckpointError: naming the first field that disagrees.
    """
    pairs = {
        "vocab_size": (config.vocab_size, target.vocab_size),
        "num_target_layers": (config.num_target_layers, target.num_layers),
    }
    if isinstance(config, Eagle3Config):
        pairs["target_hidden_size"] = (config.target_hidden_size, target.hidden_size)
    borrows = not config.own_embedding or not (
        config.own_head or config.tied_head or config.draft_vocab_size
    )
    if isinstance(config, BlockConfig) or borrows:
        pairs["hidden_size"] = (config.hidden_size, target.hidden_size)
    for name, (own, theirs) in pairs.items():
        if own is not None and own != theirs:
            raise CheckpointError(
                f"{name} is {own}, the target's is {theirs}", where=where, fix=_FIX
            )
    if isinstance(config, BlockConfig) and not 0 <= config.mask_token_id < target.vocab_size:
        raise CheckpointError(
            f"mask_token_id {config.mask_token_id} lies outside the embedding of "
            f"{target.vocab_size} rows",
            where=where,
            fix=_FIX,
        )


def _usual_taps(config: AnyConfig, layers: int) -> tuple[int, ...]:
    """Taps where the checkpoint names none: the rule of its kind's authors."""
    if isinstance(config, Eagle3Config):
        # The inputs of layers 2, the middle one and the third last.
        return (1, layers // 2 - 1, layers - 4)
    count = config.num_hidden_layers
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def _with_slots(network: AnyNetwork, slots: str) -> AnyNetwork:
    network.config = replace(network.config, slots=slots)
    return network


def _share_tables(network: AnyNetwork, target: HostTarget) -> None:
    """Drop copies of the target's own tables, which some checkpoints carry, bit for bit."""
    theirs = {
        "embed_tokens": getattr(target.embed_tokens, "weight", None),
        "lm_head": getattr(target.head, "weight", None),
    }
    for name, weight in theirs.items():
        own = getattr(network, name)
        tied = name == "embed_tokens" and network.config.tied_head
        if own is not None and not tied and weight is not None and _equal(own.weight, weight):
            setattr(network, name, None)


def _equal(own: torch.Tensor, theirs: torch.Tensor) -> bool:
    return own.shape == theirs.shape and own.dtype == theirs.dtype and torch.equal(own, theirs)

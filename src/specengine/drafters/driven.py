"""What every drafter over a network shares, and the checks that all of them make."""

import torch
from torch import nn

from specengine.drafters.base import DeviceLattice
from specengine.drafters.records import DraftConfig
from specengine.drafters.vocabulary import DraftTarget, DraftVocabulary
from specengine.errors import NumericError, RequestError
from specengine.models.linear import PrepackedLinear


class NetworkDrafter:
    """A network, its token side, and where they live.

    Args:
        network: one of the kinds' networks.
        target: lends what the network does not have.
        positions: tokens drafted by default.
    """

    def __init__(self, network: nn.Module, target: DraftTarget, positions: int) -> None:
        self.network = network
        self.target = target
        self.config: DraftConfig = network.config
        self.taps = self.config.target_layer_ids
        self.trained_positions = positions
        self.vocabulary = DraftVocabulary(network, target, self.config)
        weight = network.norm.weight
        self.dtype, self.device = weight.dtype, weight.device

    def parameter_bytes(self) -> int:
        """Bytes of weights that one forward reads; tables of which it reads a few rows count none.

        A head of the drafter's own is counted, the target's is not.
        """
        total = sum(parameter.nbytes for parameter in self.network.parameters())
        packed = (m for m in self.network.modules() if isinstance(m, PrepackedLinear))
        unread = self.vocabulary.unread_bytes() + self.looked_up_bytes()
        return total - unread + sum(module.weight_bytes() for module in packed)

    def looked_up_bytes(self) -> int:
        """Bytes of the kind's own tables of which a forward reads a few rows."""
        return 0


def require_room(needed: int, capacity: int) -> None:
    """Refuse context beyond a state's memory.

    Raises:
        RequestError: `needed` exceeds `capacity`.
    """
    if needed > capacity:
        raise RequestError(
            f"needs {needed} positions of {capacity}", where="drafter state",
            fix="allocate the state for prompt and output together",
        )  # fmt: skip


def require_positions(positions: int) -> None:
    """Refuse a draft of nothing.

    Raises:
        RequestError: `positions` is below 1.
    """
    if positions < 1:
        raise RequestError(
            f"is {positions}", where="drafted positions", fix="draft at least one position"
        )


def as_lattice(ids: torch.Tensor, scores: torch.Tensor, kind: str) -> DeviceLattice:
    """Normalise scores over the candidates.

    Args:
        ids: int64 [D, K], the target's ids.
        scores: float32 [D, K, K].
        kind: names the drafter in errors.

    Raises:
        NumericError: a score is not finite.
    """
    edge = scores.log_softmax(-1)
    if not bool(torch.isfinite(edge).all()):
        raise NumericError(
            "produced non-finite scores", where=f"drafter {kind}",
            fix="run it in bfloat16 or float32 and check its weights",
        )  # fmt: skip
    return DeviceLattice(ids=ids.contiguous(), edge=edge.float().contiguous())

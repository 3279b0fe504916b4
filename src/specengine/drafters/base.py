"""What the engine needs of a drafter."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees import DraftTree


@dataclass(frozen=True, slots=True)
class DeviceLattice:
    """A `Lattice` where the drafter computed it; its scores are finite.

    Attributes:
        ids: int64 [D, K], contiguous.
        edge: float32 [D, K, K] in nats, contiguous.
    """

    ids: torch.Tensor
    edge: torch.Tensor

    def on_host(self) -> Lattice:
        """The same numbers as arrays."""
        return Lattice(ids=self.ids.cpu().numpy(), edge=self.edge.cpu().numpy())


class DrafterState(Protocol):
    """Per-request state: K/V of the committed context, never of rejected tokens."""

    length: int
    """Number of context positions held; equals the target's committed length. Setting it to 0
    empties the state for the next request."""


class Drafter(Protocol):
    """A parallel drafter: one call drafts every position of a block."""

    kind: str
    """Name in the deployment file, such as `dflash2`."""
    taps: tuple[int, ...]
    """0-based target layers whose outputs (raw residual stream) it reads, in order."""
    trained_positions: int
    """Positions drafted by default: the trained block size less the anchor."""

    def new_state(self, capacity: int) -> DrafterState:
        """Allocate a state for at most `capacity` context positions."""
        ...

    def extend(
        self, state: DrafterState, features: torch.Tensor, tokens: NDArray[np.int64]
    ) -> None:
        """Append committed positions.

        Args:
            state: the request's state; positions continue at `state.length`.
            features: [n, len(taps) * hidden], the tapped outputs of those positions.
            tokens: int64 [n], the tokens at those positions.
        """
        ...

    def draft(self, state: DrafterState, anchor: int, positions: int) -> Lattice:
        """Draft `positions` tokens after `anchor`, whose position is `state.length`.

        Raises:
            NumericError: the drafter produced non-finite logits.
        """
        ...

    def parameter_bytes(self) -> int:
        """Bytes of weights that one call reads, the shared LM head excluded."""
        ...


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter whose lattices can stay on its device, for trees that are built there."""

    device: torch.device
    candidates_per_position: int
    """K of its lattices."""

    def draft_on_device(self, state: DrafterState, anchor: int, positions: int) -> DeviceLattice:
        """As `Drafter.draft`, which gives the same numbers.

        Raises:
            NumericError: the drafter produced non-finite logits.
        """
        ...


@runtime_checkable
class GrowingDrafter(Protocol):
    """A drafter that also grows a tree on its own steps, each conditioned on a whole path."""

    def grow(self, state: DrafterState, anchor: int, positions: int, nodes: int) -> DraftTree:
        """A tree rooted at `anchor` with at most `nodes` rows and `positions` levels below it.

        Nodes stand in the order of their score, so the first n of them are the tree of n nodes.

        Raises:
            NumericError: the drafter produced non-finite logits.
        """
        ...


@runtime_checkable
class ConfidentDrafter(Protocol):
    """A drafter that estimates which of its tokens will be accepted."""

    def draft_confident(
        self, state: DrafterState, anchor: int, positions: int, confidence: float
    ) -> Lattice:
        """As `Drafter.draft`, cut before the first position whose estimate lies below `confidence`.

        The lattice is empty where the first position's does.

        Raises:
            NumericError: the drafter produced non-finite logits or estimates.
        """
        ...

    def require_confidence(self) -> None:
        """Refuse a checkpoint that estimates nothing.

        Raises:
            OptionError: it has no confidence head.
        """
        ...

"""Block drafters as the engine drives them: context cache, and one forward per draft.

In place, row 0 of a block is the anchor and predicts nothing, so p tokens take p + 1 rows; shifted,
the anchor's row predicts the first token, and p tokens take p rows. Weights do not depend on the
number of rows, so any number of positions may be drafted; acceptance beyond the trained block is
the caller's to measure.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.drafters.base import DeviceLattice
from specengine.drafters.driven import NetworkDrafter, require_positions, require_room
from specengine.drafters.network import BlockNetwork
from specengine.drafters.records import BlockConfig
from specengine.drafters.vocabulary import DraftTarget
from specengine.lattice import Lattice


class ContextCache:
    """Rotated keys and values of committed context rows, allocated once.

    Only rows below `length` are ever read, so the memory behind them may hold anything.
    """

    def __init__(
        self, config: BlockConfig, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (1, config.num_key_value_heads, capacity, config.head_dim)
        self.layers = [
            (
                torch.empty(shape, dtype=dtype, device=device),
                torch.empty(shape, dtype=dtype, device=device),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.capacity = capacity
        self.length = 0


class BlockDrafter(NetworkDrafter):
    """What the block drafters share; a kind adds `scored`."""

    kind: str
    network: BlockNetwork
    config: BlockConfig

    def __init__(self, network: BlockNetwork, target: DraftTarget) -> None:
        super().__init__(network, target, network.config.trained_positions)

    def new_state(self, capacity: int) -> ContextCache:
        """Allocate a state for at most `capacity` context positions."""
        return ContextCache(self.config, capacity, self.dtype, self.device)

    @torch.inference_mode()
    def extend(
        self, state: ContextCache, features: torch.Tensor, tokens: NDArray[np.int64]
    ) -> None:
        """Append committed positions; see `Drafter.extend`.

        Raises:
            RequestError: more positions than the state was allocated for.
        """
        start, end = state.length, state.length + features.shape[0]
        require_room(end, state.capacity)
        if end == start:
            return
        rows = self.network.context(features.to(self.dtype))[None]
        positions = torch.arange(start, end, device=self.device)
        fresh = self.network.context_keys_values(rows, positions)
        for (keys, values), (new_keys, new_values) in zip(state.layers, fresh, strict=True):
            keys[:, :, start:end] = new_keys
            values[:, :, start:end] = new_values
        state.length = end

    def draft(self, state: ContextCache, anchor: int, positions: int) -> Lattice:
        """See `Drafter.draft`."""
        hidden = self.predicting_rows(state, anchor, positions)
        return self.lattice(hidden, anchor)

    def draft_on_device(self, state: ContextCache, anchor: int, positions: int) -> DeviceLattice:
        """See `DeviceDrafter.draft_on_device`."""
        return self.scored(self.predicting_rows(state, anchor, positions), anchor)

    def lattice(self, hidden: torch.Tensor, anchor: int) -> Lattice:
        """What `scored` gives, as arrays."""
        return self.scored(hidden, anchor).on_host()

    def scored(self, hidden: torch.Tensor, anchor: int) -> DeviceLattice:
        """The kind's own part: candidates and edges from rows [D, d]."""
        raise TypeError(f"{type(self).__name__} proposes no lattice")

    @torch.inference_mode()
    def predicting_rows(self, state: ContextCache, anchor: int, positions: int) -> torch.Tensor:
        """One forward over a block; [positions, d], row t predicts the token t + 1 after `anchor`.

        Raises:
            RequestError: no position is asked for.
        """
        require_positions(positions)
        skipped = 0 if self.config.slots == "shifted" else 1
        tokens = torch.full((positions + skipped,), self.config.mask_token_id, device=self.device)
        tokens[0] = anchor
        embedded = self.vocabulary.embed(tokens).to(self.dtype)[None, None]
        # Context further back than every layer's window can reach is not worth reading.
        first = self._first_visible(state.length)
        hidden = self.network(
            embedded,
            torch.tensor([[state.length]], device=self.device),
            [
                (keys[:, :, first : state.length], values[:, :, first : state.length])
                for keys, values in state.layers
            ],
            torch.arange(first, state.length, device=self.device),
        )
        return hidden[0, 0, skipped:]

    @torch.inference_mode()
    def unary(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores float32 [D, size] over draft ids."""
        return self.network.transform(self.vocabulary.head(hidden))

    def _first_visible(self, length: int) -> int:
        windows = [self.config.window(layer) for layer in range(self.config.num_hidden_layers)]
        if any(window is None for window in windows):
            return 0
        return max(0, length - max(window for window in windows if window is not None) + 1)

"""DFlash2 as the engine drives it: context cache, one forward per draft, the lattice.

Row 0 of a block is the anchor and predicts nothing; row k predicts the token k places after it
(in-place slots). Weights do not depend on the number of rows, so any number of positions may be
drafted; acceptance beyond the trained block is the caller's to measure.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.drafters.config import DFlash2Config
from specengine.drafters.network import DFlash2Network
from specengine.errors import NumericError, RequestError
from specengine.lattice import Lattice
from specengine.models.linear import PrepackedLinear


class DraftTarget(Protocol):
    """What the drafter borrows from the target."""

    def embed_tokens(self, tokens: torch.Tensor, /) -> torch.Tensor:
        """Token ids [...] to embeddings [..., d]."""
        ...

    def head(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """Hidden states [n, d] to raw logits [n, V]: the drafter's config names the transforms."""
        ...


class ContextCache:
    """Rotated keys and values of committed context rows, allocated once.

    Only rows below `length` are ever read, so the memory behind them may hold anything.
    """

    def __init__(
        self, config: DFlash2Config, capacity: int, dtype: torch.dtype, device: torch.device
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


class DFlash2Drafter:
    """A `specengine.drafters.base.Drafter`."""

    kind = "dflash2"

    def __init__(self, network: DFlash2Network, target: DraftTarget) -> None:
        self.network = network
        self.target = target
        self.config = network.config
        self.taps = network.config.target_layer_ids
        self.trained_positions = network.config.block_size - 1
        weight = network.hidden_norm.weight
        self.dtype, self.device = weight.dtype, weight.device

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
        if end > state.capacity:
            raise RequestError(
                f"needs {end} positions of {state.capacity}", where="drafter state",
                fix="allocate the state for prompt and output together",
            )  # fmt: skip
        if end == start:
            return
        rows = self.network.context(features.to(self.dtype))[None]
        positions = torch.arange(start, end, device=self.device)
        fresh = self.network.context_keys_values(rows, positions)
        for (keys, values), (new_keys, new_values) in zip(state.layers, fresh, strict=True):
            keys[:, :, start:end] = new_keys
            values[:, :, start:end] = new_values
        state.length = end

    @torch.inference_mode()
    def draft(self, state: ContextCache, anchor: int, positions: int) -> Lattice:
        """One forward over positions + 1 rows, then the selector; see `Drafter.draft`.

        Raises:
            NumericError: non-finite logits.
        """
        tokens = torch.full((positions + 1,), self.config.mask_token_id, device=self.device)
        tokens[0] = anchor
        embedded = self.target.embed_tokens(tokens).to(self.dtype)[None, None]
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
        )[0, 0, 1:]
        return self._lattice(hidden, anchor)

    def parameter_bytes(self) -> int:
        """Bytes of weights that one call reads; the codebooks' few looked-up rows count as none."""
        total = sum(parameter.nbytes for parameter in self.network.parameters())
        packed = (m for m in self.network.modules() if isinstance(m, PrepackedLinear))
        selector = self.network.candidate_selector
        books = selector.predecessor_codebook.nbytes + selector.successor_codebook.nbytes
        return total - books + sum(module.weight_bytes() for module in packed)

    def _first_visible(self, length: int) -> int:
        windows = [self.config.window(layer) for layer in range(self.config.num_hidden_layers)]
        if any(window is None for window in windows):
            return 0
        return max(0, length - max(window for window in windows if window is not None) + 1)

    def _lattice(self, hidden: torch.Tensor, anchor: int) -> Lattice:
        unary = self.network.transform(self.target.head(hidden))
        top, ids = top_candidates(unary, self.config.selector_top_k)
        anchors = torch.full_like(ids[:1], anchor)
        previous = torch.cat((anchors, ids[:-1]))
        scores = top[:, None, :] + self.network.candidate_selector.pair_scores(
            hidden, previous, ids
        )
        edge = scores.log_softmax(-1)
        if not bool(torch.isfinite(edge).all()):
            raise NumericError(
                "produced non-finite scores", where="drafter dflash2",
                fix="run it in bfloat16 or float32 and check its weights",
            )  # fmt: skip
        return Lattice(
            ids=ids.cpu().numpy().astype(np.int64), edge=edge.cpu().numpy().astype(np.float32)
        )


def top_candidates(unary: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest scores per row and their ids, largest first, ties by lowest id.

    Args:
        unary: float32 [n, V].
        count: candidates per row.

    Raises:
        NumericError: a row holds a number that is not finite, minus infinity (a padded column)
            excepted.
    """
    rows, size = unary.shape
    width = 64
    blocks = -(-size // width)
    if size % width:
        unary = torch.nn.functional.pad(unary, (0, blocks * width - size), value=float("-inf"))
    grouped = unary.view(rows, blocks, width)
    # The largest `count` of a row lie in the `count` blocks with the largest maxima: one pass over
    # the row instead of a full selection. Stable sorts keep equal scores in id order.
    peaks = grouped.amax(-1)
    if not bool(torch.isfinite(peaks.amax(-1)).all()):
        raise NumericError(
            "produced non-finite logits", where="drafter",
            fix="run it in bfloat16 or float32 and check its weights",
        )  # fmt: skip
    ranked = torch.sort(peaks, dim=-1, descending=True, stable=True).indices
    chosen = ranked[:, :count].sort(-1).values
    near = torch.arange(width, device=unary.device)
    places = (chosen[..., None] * width + near).flatten(1)
    values, order = torch.sort(unary.gather(1, places), dim=-1, descending=True, stable=True)
    return values[:, :count], places.gather(1, order[:, :count])

"""The exact pass over the proposed rows, and the commit of those that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.decoding.slots import Slot
from specengine.errors import NumericError
from specengine.trees import DraftTree

if TYPE_CHECKING:
    from specengine.drafters.base import Drafter
    from specengine.models import Target


@dataclass(frozen=True, slots=True)
class Verified:
    """What the exact pass says about each row.

    Attributes:
        logits: [N, V], the target's after each row; of a prompt, after its last one.
        features: [N, taps * hidden], what the drafter reads of the rows.
        tokens: int64 [N], the rows' own tokens.
    """

    logits: torch.Tensor
    features: torch.Tensor
    tokens: NDArray[np.int64]

    def argmax(self) -> NDArray[np.int64]:
        """int64 [N], greedy token after each row; of equal logits the lowest id.

        Raises:
            NumericError: see `greedy_tokens`.
        """
        return greedy_tokens(self.logits)


def greedy_tokens(logits: torch.Tensor) -> NDArray[np.int64]:
    """Row-wise argmax, ties to the lowest id.

    Args:
        logits: [n, V].

    Raises:
        NumericError: a row holds NaN or +inf, whose argmax would be a token out of noise. (-inf
            can never be picked unless all are, which is refused as well.)
    """
    if logits.device.type == "cpu":
        # numpy's argmax is vectorised; torch's on bfloat16 rows costs as much as the LM head.
        wide = logits.float().numpy()
        argmax = wide.argmax(axis=-1)
        best = np.take_along_axis(wide, argmax[:, None], axis=-1)
        finite = bool(np.isfinite(best).all())
    else:
        values, indices = logits.max(dim=-1)
        argmax = indices.cpu().numpy()
        finite = bool(torch.isfinite(values).all())
    if not finite:
        raise NumericError(
            "holds non-finite numbers",
            where="the target's logits",
            fix="check the checkpoint and the dtype; the request is lost, the engine keeps serving",
        )
    return argmax.astype(np.int64, copy=False)


class Verifier:
    """Runs the target over a tree. Only this pass accepts tokens (paper section 2.1)."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def verify(self, slot: Slot, tree: DraftTree) -> Verified:
        """Score all rows in one pass; the cache's length does not change."""
        logits, features = self._target.verify(slot.cache, tree)
        return Verified(logits, features, tree.tokens)

    def prefill(self, slot: Slot, prompt: Sequence[int]) -> Verified:
        """Score a prompt in one pass; `logits` are of its last position only."""
        tokens = np.asarray(prompt, dtype=np.int64)
        rows = torch.tensor(tokens, device=self._target.device)
        forward = self._target.forward(slot.cache, rows)
        return Verified(self._target.logits(forward.hidden[-1:]), forward.features, tokens)


class Committer:
    """Makes accepted rows part of the context, in the target's cache and the drafter's state."""

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self._target = target
        self._drafter = drafter

    def commit(self, slot: Slot, rows: Sequence[int], verified: Verified) -> None:
        """Keep `rows` (ascending, root first) of the last pass; all other rows leave no trace."""
        self.commit_target(slot, rows)
        self.extend_drafter(slot, rows, verified)

    def commit_target(self, slot: Slot, rows: Sequence[int]) -> None:
        """The target's half of `commit`."""
        self._target.commit(slot.cache, rows)

    def extend_drafter(self, slot: Slot, rows: Sequence[int], verified: Verified) -> None:
        """The drafter's half of `commit`, and the tokens that lookups read."""
        features, tokens = verified.features, verified.tokens
        if len(rows) < len(tokens):
            features, tokens = features[list(rows)], tokens[list(rows)]
        slot.tokens.extend(tokens.tolist())
        if self._drafter is not None:
            assert slot.state is not None
            self._drafter.extend(slot.state, features, tokens)

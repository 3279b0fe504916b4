"""Teacher forcing: what the exact weights would have said at every token of an output.

This is the scorer behind token forcing (paper section 3.3). The LM head runs in float32; the stop
decision is scored like any other token, since the stop token is part of the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.decoding.slots import SlotPool
from specengine.errors import NumericError

if TYPE_CHECKING:
    from specengine.models import Target

HEAD_ROWS = 256
"""Rows of one LM head call: bounds the float32 logits at 256 x vocabulary."""


@dataclass(frozen=True, slots=True)
class ScoreArrays:
    """One entry per output token, scored given the prompt and the output before it.

    Attributes:
        argmax: int64 [n], the scorer's token; of equal logits the lowest id.
        margin_nats: float32 [n], log p(argmax) - log p(token); 0 where they agree.
    """

    argmax: NDArray[np.int64]
    margin_nats: NDArray[np.float32]


class Scorer:
    """Scores outputs against a target."""

    def __init__(self, target: Target, pool: SlotPool) -> None:
        self._target = target
        self._pool = pool

    @torch.inference_mode()
    def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None
    ) -> ScoreArrays:
        """Score `output` after `prompt`.

        Args:
            prompt: at least one token.
            output: at least one token.
            prefill_length: tokens per forward pass; None takes all in one.

        Raises:
            NumericError: non-finite logits.
        """
        # The last token is scored, never read.
        tokens = torch.tensor([*prompt, *output][:-1], dtype=torch.int64).to(self._target.device)
        chunk = prefill_length or len(tokens)
        slot = self._pool.acquire(len(tokens) + 1)
        first = len(prompt) - 1
        parts: list[ScoreArrays] = []
        try:
            for start in range(0, len(tokens), chunk):
                piece = tokens[start : start + chunk]
                hidden = self._target.forward(slot.cache, piece).hidden
                self._target.commit(slot.cache, range(len(piece)))
                skipped = min(max(first - start, 0), len(piece))
                begin = start + skipped - first
                wanted = output[begin : begin + len(piece) - skipped]
                parts.extend(self._head(hidden[skipped:], wanted))
        finally:
            self._pool.release(slot)
        return ScoreArrays(
            argmax=np.concatenate([part.argmax for part in parts]),
            margin_nats=np.concatenate([part.margin_nats for part in parts]),
        )

    def _head(self, hidden: torch.Tensor, wanted: Sequence[int]) -> list[ScoreArrays]:
        parts = []
        for start in range(0, len(hidden), HEAD_ROWS):
            logits = self._target.logits_fp32(hidden[start : start + HEAD_ROWS])
            picked = torch.tensor(wanted[start : start + HEAD_ROWS], device=logits.device)
            best, argmax = logits.max(dim=-1)
            # The normaliser cancels in the difference of two log-probabilities of one row.
            margin = best - logits.gather(-1, picked[:, None])[:, 0]
            if not bool(torch.isfinite(margin).all()):
                raise NumericError(
                    "holds non-finite numbers",
                    where="the scorer's logits",
                    fix="check the checkpoint and the dtype",
                )
            parts.append(ScoreArrays(argmax.cpu().numpy(), margin.cpu().numpy()))
        return parts

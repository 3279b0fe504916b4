"""One request from its prompt to its last token."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from specengine.decoding.sampling import Sampler
from specengine.decoding.slots import Slot, SlotPool
from specengine.decoding.step import Step

FinishReason = Literal["stop", "length"]
Halt = Callable[[int], bool]
"""Called once per token in the order of emission; True ends the request after that token."""


class Session:
    """State of one running request.

    A stop token ends the output and belongs to it; a stop that falls on the last allowed token is
    a stop, not a length. Tokens that the pass accepted behind a stop are neither emitted nor
    counted.
    """

    def __init__(
        self,
        step: Step,
        pool: SlotPool,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        halt: Halt | None,
        sampler: Sampler | None = None,
    ) -> None:
        self._step = step
        self._pool = pool
        self._prompt = prompt
        self._stop_ids = stop_ids
        self._halt = halt
        self._sampler = sampler
        self._slot: Slot | None = None
        self._anchor = -1
        self.remaining = max_new_tokens
        """Tokens that may still be emitted."""
        self.steps = 0
        """Verify passes so far: every token but the first came out of one."""
        self.finish_reason: FinishReason | None = None
        """None while running."""

    @torch.inference_mode()
    def step(self) -> list[int]:
        """Emit the next tokens: the first call prefills the prompt and emits one token.

        A finished session emits nothing. A session that raised must be closed.

        Raises:
            NumericError: the target or the drafter produced non-finite numbers.
        """
        if self.finish_reason is not None:
            return []
        if self._slot is None:
            self._slot = self._pool.acquire(self._positions())
            tokens = [self._step.prefill(self._slot, self._prompt, self._sampler)]
            self._cut(tokens)
        else:
            tokens = self._step.run(
                self._slot, self._anchor, self.remaining, self._cut, self._sampler
            )
            self.steps += 1
        self._anchor = tokens[-1]
        self.remaining -= len(tokens)
        if self.finish_reason is None and self.remaining == 0:
            self.finish_reason = "length"
        if self.finish_reason is not None:
            self.close()
        return tokens

    def close(self) -> None:
        """Give the slot back; harmless when repeated. A session closed early emits no more."""
        if self.finish_reason is None:
            self.finish_reason = "length"
        if self._slot is not None:
            self._pool.release(self._slot)
            self._slot = None

    def _positions(self) -> int:
        return len(self._prompt) + self.remaining + self._step.proposer.max_rows

    def _cut(self, tokens: list[int]) -> int:
        for index, token in enumerate(tokens):
            if token in self._stop_ids or (self._halt is not None and self._halt(token)):
                self.finish_reason = "stop"
                return index + 1
        return len(tokens)

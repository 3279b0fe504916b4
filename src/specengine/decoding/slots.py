"""Reusable per-request memory: a target cache and a drafter state, allocated once, used in turn.

Nothing of it grows while a request runs. A slot that is too small for the next request is replaced
by a larger one when that request starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from specengine.drafters.ngram import TokenHistory
from specengine.models.graphs import ROW_STEP

if TYPE_CHECKING:
    from specengine.drafters.base import Drafter, DrafterState
    from specengine.models import Target, TargetCache

GRANULE = 256
"""Capacities are multiples of this, so that requests of similar length share a slot."""


@dataclass(slots=True)
class Slot:
    """Memory of one running request."""

    capacity: int
    """Positions, the rows of one verify pass included."""
    cache: TargetCache
    state: DrafterState | None
    """None without a drafter."""
    tokens: TokenHistory = field(default_factory=TokenHistory)
    """Committed tokens, one per committed position."""


class SlotPool:
    """At most `slots` idle slots are kept; more may be in use when the caller asks for more."""

    def __init__(self, target: Target, drafter: Drafter | None, *, slots: int) -> None:
        self._target = target
        self._drafter = drafter
        self._slots = slots
        self._idle: list[Slot] = []

    @torch.inference_mode()
    def acquire(self, positions: int) -> Slot:
        """An empty slot that holds `positions`, and what pads a captured pass."""
        positions += ROW_STEP
        for slot in self._idle:
            if slot.capacity >= positions:
                self._idle.remove(slot)
                return slot
        if self._idle:
            # Release the memory of the slot that this one replaces before allocating.
            self._idle.pop()
        capacity = -(-positions // GRANULE) * GRANULE
        state = None if self._drafter is None else self._drafter.new_state(capacity)
        return Slot(capacity, self._target.new_cache(capacity), state)

    @torch.inference_mode()
    def release(self, slot: Slot) -> None:
        """Empty a slot and keep it for the next request."""
        if len(self._idle) >= self._slots:
            return
        slot.cache.reset()
        slot.tokens.clear()
        if slot.state is not None:
            slot.state.length = 0
        self._idle.append(slot)

    def clear(self) -> None:
        """Free the memory of all idle slots."""
        self._idle.clear()

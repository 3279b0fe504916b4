"""Which token a block's rows predict, found on the target's own text.

Some exports of DSpark do not say whether their rows are in place or shifted, and read the wrong way
a drafter gets next to nothing accepted. Both readings are compared on text that the target decodes
greedily, by how often the best candidate of a position is the target's token.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from specengine.drafters.base import Drafter
from specengine.drafters.records import Slots
from specengine.errors import CheckpointError
from specengine.models.cache import TargetCache
from specengine.models.target import Forward

STARTS, TOKENS = 4, 32
"""Texts, and tokens of each."""
_FEWEST_HITS = 16
_LEAD = 1.5
"""How many times as many hits the better reading must have."""

_log = logging.getLogger("specengine")


class WritingTarget(Protocol):
    """A target that can decode."""

    vocab_size: int
    device: torch.device
    taps: tuple[int, ...]

    def new_cache(self, capacity: int) -> TargetCache:
        """State of one request."""
        ...

    def forward(self, cache: TargetCache, tokens: torch.Tensor) -> Forward:
        """Run rows after the committed ones."""
        ...

    def commit(self, cache: TargetCache, rows: range) -> None:
        """Keep rows of the last pass."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, V]."""
        ...


@torch.inference_mode()
def tell_slots(
    drafter_with: Callable[[Slots], Drafter], target: WritingTarget, folder: Path
) -> Slots:
    """Decode a little text and draft along it both ways.

    Raises:
        CheckpointError: neither reading is clearly better.
    """
    readings: tuple[Slots, Slots] = ("in_place", "shifted")
    taps, target.taps = target.taps, drafter_with("in_place").taps
    try:
        texts = [_text(target, start) for start in _starts(target.vocab_size)]
    finally:
        target.taps = taps
    # As many positions in both readings, though a shifted block drafts one more.
    positions = max(drafter_with("in_place").trained_positions, 1)
    hits = {
        slots: sum(_hits(drafter_with(slots), positions, *text) for text in texts)
        for slots in readings
    }
    best, other = sorted(readings, key=lambda slots: hits[slots], reverse=True)
    found = f"{hits[best]} hits when read {best}, {hits[other]} when {other}"
    if hits[best] < _FEWEST_HITS or hits[best] < _LEAD * hits[other]:
        raise CheckpointError(
            f"does not say which tokens a block's rows predict, and the target's text cannot tell "
            f"({found})",
            where=str(folder / "config.json"),
            fix="add sample_from_anchor: true where the anchor's row predicts, else false",
        )
    _log.info("drafter: slots are not stated; %s", found)
    return best


def _starts(vocabulary: int) -> list[int]:
    return [(2 * i + 1) * vocabulary // (2 * STARTS) for i in range(STARTS)]


def _text(target: WritingTarget, start: int) -> tuple[list[int], torch.Tensor]:
    """Greedy text after one token, and the features of all of it but its last token."""
    cache = target.new_cache(TOKENS + 1)
    tokens, features = [start], []
    for _ in range(TOKENS):
        forward = target.forward(cache, torch.tensor(tokens[-1:], device=target.device))
        target.commit(cache, range(1))
        features.append(forward.features)
        tokens.append(int(target.logits(forward.hidden)[0].argmax()))
    return tokens, torch.cat(features)


def _hits(drafter: Drafter, positions: int, tokens: list[int], features: torch.Tensor) -> int:
    state = drafter.new_state(len(features))
    total = 0
    for place in range(1, len(features)):
        drafter.extend(state, features[place - 1 : place], np.array(tokens[place - 1 : place]))
        best = drafter.draft(state, tokens[place], positions).ids[:, 0]
        ahead = tokens[place + 1 : place + 1 + positions]
        total += int((best[: len(ahead)] == ahead).sum())
    return total

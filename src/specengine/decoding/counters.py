"""The engine's own counts since the last flush: shown to people, never decisive for a rate."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.profiler import record_function

from specengine.trees.registry import TREES

PARTS = ("prefill", "draft", "build", "verify", "commit")
"""Parts of a step whose seconds are kept."""
MECHANISMS = (
    *(kind.mechanism for kind in TREES.values()),
    "sampled_chain",
    "own_tree",
    "device_tree",
    "ngram_chain",
    "confidence_cut",
    "extended_positions",
    "prepacked_linear",
    "fused_projections",
    "packed_linear",
    "cuda_graphs",
)
"""Mechanisms whose runs are counted; zero for one that an option claims means that it is off."""
NEVER_ACCEPTED_STEPS = 50
"""Consecutive drafted steps without one accepted token after which the drafter is reported."""

_log = logging.getLogger("specengine")


@dataclass(slots=True)
class EngineCounters:
    """Counts of decode steps.

    The first token of a request comes from its prefill. It is output, but no step emitted it, so
    neither it nor the prefill counts here, and tau = emitted_tokens / steps is that of the steps.
    """

    steps: int = 0
    """Verify passes, or AR passes without a drafter."""
    emitted_tokens: int = 0
    """Tokens that steps emitted, the bonus included; nothing after a stop or the length limit."""
    drafted_tokens: int = 0
    """Verified rows that carried a drafted token: the root is not drafted."""
    verified_rows: int = 0
    """Rows of all verify passes, roots included."""
    requests: int = 0
    """Requests whose prefill ran."""
    prompt_tokens: int = 0
    """Tokens of their prompts."""
    events: dict[str, int] = field(default_factory=lambda: {"never_accepted": 0})
    """Warnings by kind; `never_accepted`: the drafter had nothing accepted for 50 steps."""
    activations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MECHANISMS, 0))
    """How often each mechanism ran."""
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Host time by part of the step."""
    _traced: bool = False
    """Whether parts are marked for the profiler."""
    _fruitless: int = 0
    """Consecutive drafted steps without an accepted token."""

    def reset(self) -> None:
        """Zero everything, in place: the parts of the engine hold this very object."""
        fresh = EngineCounters()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the duration of the block to `part`."""
        start = time.perf_counter()
        try:
            if self._traced:
                with record_function(f"specengine.{part}"):
                    yield
            else:
                yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Mark the parts of steps as scopes of torch's profiler inside the block."""
        self._traced = True
        try:
            yield
        finally:
            self._traced = False

    def count_step(self, *, rows: int, emitted: int) -> None:
        """One verify pass over `rows` rows emitted `emitted` tokens."""
        self.steps += 1
        self.verified_rows += rows
        self.drafted_tokens += rows - 1
        self.emitted_tokens += emitted

    def watch_acceptance(self, accepted: int) -> None:
        """Report a drafter of which nothing is accepted.

        Such a drafter is broken (wrong taps, an overflowing dtype) rather than weak, and gives no
        other sign than low speed.
        """
        self._fruitless = 0 if accepted else self._fruitless + 1
        if self._fruitless == NEVER_ACCEPTED_STEPS:
            self.events["never_accepted"] += 1
            _log.warning(
                "drafter: none of its tokens was accepted in %d steps; "
                "check that it was trained for this target, and its dtype",
                NEVER_ACCEPTED_STEPS,
            )

    def snapshot(self) -> dict[str, Any]:
        """The counts as the judge's `Counters` record spells them."""
        return {
            "steps": self.steps,
            "emitted_tokens": self.emitted_tokens,
            "drafted_tokens": self.drafted_tokens,
            "verified_rows": self.verified_rows,
            "activations": dict(self.activations),
            "seconds": dict(self.seconds),
            "events": dict(self.events),
        }

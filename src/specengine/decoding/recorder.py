"""Recording: the greedy output of a request and the lattice drafted at every position of it.

An exact replay walks any tree over a recording (paper section 6.4): from anchor i, a tree that
accepts a tokens goes on at anchor i + a + 1, and each of these anchors has its lattice here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.decoding.proposal import LatticeProposer
from specengine.decoding.slots import Slot, SlotPool
from specengine.decoding.step import Step
from specengine.lattice import Lattice


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """Output and lattices of one request.

    Attributes:
        tokens: int64 [T], greedy output, the stop token included.
        ids: int64 [T - 1, D, K], candidates drafted with anchor `tokens[i]` and everything before
            it as context. The last token has no continuation to replay, so no lattice.
        edge: float32 [T - 1, D, K, K] in nats, as in `Lattice`.
    """

    tokens: NDArray[np.int64]
    ids: NDArray[np.int64]
    edge: NDArray[np.float32]


class Recorder:
    """Decodes with the engine's own step, but drafts at every position rather than once per step.

    A step's accepted rows are committed to the drafter one by one, with a draft after each; the
    last of these lattices is the next step's.
    """

    def __init__(self, step: Step, proposer: LatticeProposer, pool: SlotPool) -> None:
        self._step = step
        self._proposer = proposer
        self._pool = pool

    @torch.inference_mode()
    def record(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        positions: int,
        stop_ids: frozenset[int],
        keep_going: Callable[[], bool],
    ) -> RecordedOutput:
        """Record up to `max_new_tokens` tokens; ends early, incomplete, when `keep_going` fails."""
        rows = self._proposer.max_rows
        slot = self._pool.acquire(len(prompt) + max_new_tokens + rows)
        try:
            tokens = [self._step.prefill(slot, prompt)]
            lattices: list[Lattice] = []
            while keep_going() and tokens[-1] not in stop_ids and len(tokens) < max_new_tokens:
                if not lattices:
                    lattices.append(self._proposer.draft(slot, tokens[-1], positions))
                remaining = max_new_tokens - len(tokens)
                self._advance(slot, tokens, lattices, remaining, positions, stop_ids)
        finally:
            self._pool.release(slot)
        return _as_arrays(tokens, lattices[: len(tokens) - 1], positions)

    def _advance(
        self,
        slot: Slot,
        tokens: list[int],
        lattices: list[Lattice],
        remaining: int,
        positions: int,
        stop_ids: frozenset[int],
    ) -> None:
        """One verify pass over the newest lattice; appends its tokens and their lattices."""
        tree = self._proposer.build(lattices[-1], tokens[-1], remaining - 1)
        acceptance, verified = self._step.verify(slot, tree)
        self._step.committer.commit_target(slot, acceptance.rows)
        before = len(tokens)
        for row, token in zip(acceptance.rows, acceptance.tokens, strict=True):
            tokens.append(token)
            if token in stop_ids or len(tokens) - before == remaining:
                break
            self._step.committer.extend_drafter(slot, [row], verified)
            lattices.append(self._proposer.draft(slot, token, positions))
        self._step.counters.count_step(rows=len(tree), emitted=len(tokens) - before)


def _as_arrays(tokens: list[int], lattices: list[Lattice], positions: int) -> RecordedOutput:
    if not lattices:
        ids = np.zeros((0, positions, 0), dtype=np.int64)
        edge = np.zeros((0, positions, 0, 0), dtype=np.float32)
    else:
        ids = np.stack([lattice.ids for lattice in lattices])
        edge = np.stack([lattice.edge for lattice in lattices])
    return RecordedOutput(tokens=np.array(tokens, dtype=np.int64), ids=ids, edge=edge)

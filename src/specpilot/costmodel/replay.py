"""Exact replay: tree selection and verification rerun on recorded lattices (paper section 3.1).

A recording holds the target's greedy output and, for every output position, the lattice drafted
there. Replay walks it as the live engine does: at anchor i a tree that accepts a drafted tokens
emits a + 1, and the next anchor is i + a + 1. Trees of any builder: `replay_trees`; best-first ones
without building them: `replay_best_first`.

A live request that may emit `limit` tokens drafts no deeper than it may still emit, and near its
end its trees are wider for it. Replay does the same when it is told the limit; without one the
request counts as cut short, its trees unaware of the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees import DraftTree, build_chain
from specpilot.core.errors import WorkloadError
from specpilot.engines.base import Recording

LARGEST_SCORE = 1e-3
"""Of a log-probability: 0, and what rounding may add."""

Step = Callable[[int], tuple[int, int]]
"""Anchor index -> (drafted tokens that are accepted there, rows verified)."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Accepted drafted tokens of every step of one output, in order."""

    request_id: str
    accepted: tuple[int, ...]
    emitted: int
    """Tokens after the first, which the prefill gives."""
    rows: int
    """Rows verified over all steps, the roots included."""

    @property
    def tau(self) -> float:
        """Tokens emitted per step, the bonus included."""
        return self.emitted / len(self.accepted) if self.accepted else 0.0


def check_recording(recording: Recording) -> Recording:
    """Return the recording, or raise.

    Raises:
        WorkloadError: shapes disagree, or a score is not finite or above 0.
    """
    steps = len(recording.tokens) - 1
    ids, edge = recording.ids, recording.edge
    if ids.ndim != 3 or len(ids) < steps or edge.shape != (*ids.shape, ids.shape[2]):
        raise WorkloadError(
            f"has {len(recording.tokens)} tokens, ids {ids.shape} and edges {edge.shape}",
            where=f"recording {recording.request_id}",
            fix="record the request again",
        )
    if not np.isfinite(edge).all():
        raise WorkloadError(
            "holds non-finite scores",
            where=f"recording {recording.request_id}",
            fix="check the drafter's weights and dtype",
        )
    if edge.size and edge.max() > LARGEST_SCORE:
        raise WorkloadError(
            f"holds a score of {edge.max():.3g}, which is no log-probability",
            where=f"recording {recording.request_id}",
            fix="let the drafter normalise its scores over the candidates",
        )
    return recording


def replay_chain(recording: Recording, positions: int, limit: int | None = None) -> Replayed:
    """The greedy chain of `positions` drafted tokens."""

    def step(anchor: int) -> tuple[int, int]:
        depth = depth_at(anchor, positions, limit)
        if depth == 0:
            return 0, 1
        lattice = lattice_at(recording, anchor, depth)
        tree = build_chain(lattice, int(recording.tokens[anchor]), depth + 1)
        return _prefix(tree.tokens[1:], recording.tokens[anchor + 1 :]), len(tree)

    return walk(recording, step)


def replay_oracle(recording: Recording, positions: int, limit: int | None = None) -> Replayed:
    """Keeps accepting while the target's token is among the candidates."""

    def step(anchor: int) -> tuple[int, int]:
        depth = depth_at(anchor, positions, limit)
        wanted = recording.tokens[anchor + 1 : anchor + 1 + depth]
        found = (recording.ids[anchor, : len(wanted)] == wanted[:, None]).any(axis=1)
        accepted = len(wanted) if found.all() else int(np.argmin(found))
        return accepted, accepted + 1

    return walk(recording, step)


def needed_rows(tree: DraftTree, continuation: Sequence[int]) -> list[int]:
    """Of the first rows of a tree, how many hold 1, 2, ... tokens of a continuation."""
    tip = 0
    found: list[int] = []
    drafted = zip(tree.parent.tolist(), tree.tokens.tolist(), strict=True)
    for node, (parent, token) in enumerate(drafted):
        if len(found) == len(continuation):
            break
        if node and parent == tip and token == continuation[len(found)]:
            found.append(node + 1)
            tip = node
    return found


def mean_tau(replays: Sequence[Replayed]) -> float:
    """Tokens per step over all steps of several outputs."""
    steps = sum(len(item.accepted) for item in replays)
    return sum(item.emitted for item in replays) / steps if steps else 0.0


def walk(recording: Recording, step: Step) -> Replayed:
    """Step after step over the recorded output, as the live engine goes."""
    last = len(recording.tokens) - 1
    anchor, rows, lengths = 0, 0, []
    while anchor < last:
        accepted, verified = step(anchor)
        length = min(accepted, last - anchor)
        lengths.append(length)
        rows += verified
        anchor = min(anchor + length + 1, last)
    return Replayed(recording.request_id, tuple(lengths), emitted=max(last, 0), rows=rows)


def depth_at(anchor: int, positions: int, limit: int | None) -> int:
    """Drafted positions that a request of `limit` tokens may still use at an anchor: the bonus
    takes one of those left."""
    return positions if limit is None else max(min(positions, limit - anchor - 2), 0)


def lattice_at(recording: Recording, anchor: int, positions: int) -> Lattice:
    """The lattice drafted at an anchor, cut to its first positions."""
    return Lattice(recording.ids[anchor, :positions], recording.edge[anchor, :positions])


def _prefix(drafted: NDArray[np.int64], wanted: NDArray[np.int64]) -> int:
    count = min(len(drafted), len(wanted))
    agree = drafted[:count] == wanted[:count]
    return count if agree.all() else int(np.argmin(agree))

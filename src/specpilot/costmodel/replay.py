"""Exact replay: tree selection and verification rerun on recorded lattices (paper section 3.1).

A recording holds the target's greedy output and, for every output position, the lattice drafted
there. Replay walks it as the live engine does: at anchor i a tree that accepts a drafted tokens
emits a + 1, and the next anchor is i + a + 1. One best-first tree per anchor answers every node
budget, because best-first trees are nested; the trees of all anchors are built together. Trees of
any builder, one by one: `replay_trees`.

A live request that may emit `limit` tokens drafts no deeper than it may still emit, and near its
end its trees are wider for it. Replay does the same when it is told the limit; without one the
request counts as cut short, its trees unaware of the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.lattice import Lattice
from specengine.trees import CaDDTree, DDTree, TreeBatch, build, build_best_first_batch
from specpilot.core.errors import WorkloadError
from specpilot.engines.base import Recording

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
        WorkloadError: shapes disagree or a score is not finite.
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
    return recording


def replay_chain(recording: Recording, positions: int, limit: int | None = None) -> Replayed:
    """The greedy chain of `positions` drafted tokens."""

    def step(anchor: int) -> tuple[int, int]:
        depth = depth_at(anchor, positions, limit)
        if depth == 0:
            return 0, 1
        lattice = lattice_at(recording, anchor, depth)
        tree = build("chain", lattice, int(recording.tokens[anchor]), depth + 1)
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


class BestFirstReplay:
    """Best-first trees of one recording for every node budget up to `max_nodes`."""

    def __init__(
        self,
        recording: Recording,
        positions: int,
        max_nodes: int,
        builder: DDTree | CaDDTree | None = None,
    ) -> None:
        """Build the trees of all anchors.

        Args:
            builder: takes nodes best-first by marginals, CaDDTree as far as they pay; None takes
                them by the lattice's edges.

        Raises:
            WorkloadError: the recording is damaged.
        """
        self._recording = check_recording(recording)
        self._max_nodes = max_nodes
        anchors = max(len(recording.tokens) - 1, 0)
        ids, edge = recording.ids[:anchors, :positions], recording.edge[:anchors, :positions]
        trees, self._size = _build_all(ids, edge, max_nodes, builder)
        self._needed = _needed_nodes(recording, trees, ids.shape[1])

    def at(self, nodes: int) -> Replayed:
        """Replay with `nodes` verified rows, the root included.

        Raises:
            ValueError: `nodes` is not within 1 and `max_nodes`.
        """
        if not 1 <= nodes <= self._max_nodes:
            raise ValueError(f"{nodes} nodes asked of trees of 1 to {self._max_nodes}")
        rows = np.minimum(self._size, nodes)
        accepted = (self._needed <= rows[:, None]).sum(axis=1)
        steps: list[tuple[int, int]] = list(zip(accepted.tolist(), rows.tolist(), strict=True))
        return walk(self._recording, steps.__getitem__)


def _build_all(
    ids: NDArray[np.int64],
    edge: NDArray[np.float32],
    nodes: int,
    builder: DDTree | CaDDTree | None,
) -> tuple[TreeBatch, NDArray[np.int64]]:
    """Trees of all lattices, and how many of each tree's rows are kept."""
    if len(ids) == 0:
        return build_best_first_batch(ids, edge, nodes), np.zeros(0, dtype=np.int64)
    scored = DDTree() if isinstance(builder, CaDDTree) else builder
    trees = build_best_first_batch(ids, edge if scored is None else scored.scores(edge), nodes)
    if isinstance(builder, CaDDTree):
        return trees, builder.sizes(trees.score)
    return trees, trees.size.astype(np.int64)


def _needed_nodes(recording: Recording, trees: TreeBatch, width: int) -> NDArray[np.int64]:
    """int64 [T - 1, D]: the smallest budget whose tree accepts 1, 2, ... drafted tokens there;
    max_nodes + 1 where none does."""
    anchors, max_nodes = trees.tokens.shape
    # Row i holds the tokens after anchor i; no drafted token is -2, so the output's end stops it.
    padded = np.concatenate([recording.tokens[1:], np.full(width + 1, -2, dtype=np.int64)])
    wanted = np.lib.stride_tricks.sliding_window_view(padded, width + 1)[:anchors]
    needed = np.full((anchors, width), max_nodes + 1, dtype=np.int64)
    rows = np.arange(anchors)
    accepted, tip = np.zeros(anchors, dtype=np.intp), np.zeros(anchors, dtype=np.intp)
    for node in range(1, max_nodes):
        hit = (trees.parent[:, node] == tip) & (trees.tokens[:, node] == wanted[rows, accepted])
        needed[hit, accepted[hit]] = node + 1
        accepted += hit
        tip[hit] = node
    return needed


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

"""Exact replay of best-first trees without building them, for every node budget at once.

Best-first trees are nested, so all that replay needs of an anchor is where the target's
continuation stands in their order (`specengine.trees.best_first_places`). The lattices of several
recordings are searched together; only where scores tie is a tree built.
"""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from specengine.trees import (
    BestFirst,
    CaDDTree,
    Calibrated,
    DDTree,
    TreeBuilder,
)
from specengine.trees.best_first_places import CHUNK, Rescore, places
from specengine.trees.marginal_scores import best_marginal_scores
from specpilot.costmodel.replay import Replayed, walk
from specpilot.costmodel.replay_walks import Anchors, Placed, slots_of
from specpilot.engines.base import Recording

BestFirstBuilder = BestFirst | DDTree | CaDDTree | Calibrated
PLAIN = BestFirst()


def is_best_first(builder: TreeBuilder) -> TypeGuard[BestFirstBuilder]:
    """Whether a builder takes nodes best-first by some score of each edge."""
    return isinstance(builder, BestFirst | DDTree | CaDDTree | Calibrated)


class BestFirstReplay:
    """One recording, for every node budget up to `max_nodes`."""

    def __init__(
        self,
        recording: Recording,
        needed: NDArray[np.int64],
        size: NDArray[np.int64],
        max_nodes: int,
    ) -> None:
        """Take what `best_first_replays` found.

        Args:
            needed: int64 [T - 1, D], the rows after which 1, 2, ... tokens are accepted there.
            size: int64 [T - 1], rows of each tree.
        """
        self._recording, self._max_nodes = recording, max_nodes
        self._needed, self._size = needed, size

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

    def from_starts(self, nodes: int) -> tuple[int, int]:
        """Tokens and steps of the walks from each of the first D anchors, summed.

        On few requests it matters much where steps happen to start. Over several starts builders
        compare with less of that noise, and unlike over all anchors in the right proportion.
        """
        needed = self._needed <= np.minimum(self._size, nodes)[:, None]
        accepted: list[int] = needed.sum(axis=1).tolist()
        count = len(accepted)
        steps = [0] * (count + 1)
        for anchor in reversed(range(count)):
            steps[anchor] = 1 + steps[min(anchor + accepted[anchor] + 1, count)]
        starts = range(min(count, needed.shape[1]))
        return sum(count - start for start in starts), sum(steps[start] for start in starts)


def best_first_replays(
    recordings: Sequence[Recording],
    positions: int,
    max_nodes: int,
    builder: BestFirstBuilder = PLAIN,
) -> list[BestFirstReplay]:
    """Replays of checked recordings, in their order.

    Args:
        positions: of each lattice, as many as all recordings have.
        max_nodes: largest budget that will be asked.
    """
    buffer = np.zeros(0, dtype=np.float32)
    found = []
    for pool in _pools(recordings):
        edge, buffer = _edges(pool, positions, buffer)
        ids = np.concatenate([item.ids[: len(item.tokens[1:]), :positions] for item in pool])
        slots = np.concatenate([continuation_slots(item, positions) for item in pool])
        placed = place_best_first(Anchors(ids, edge, slots), max_nodes, builder)
        ends = np.cumsum([len(item.tokens[1:]) for item in pool])[:-1]
        found_parts = np.split(placed.needed, ends), np.split(placed.size, ends)
        parts = zip(pool, *found_parts, strict=True)
        found += [BestFirstReplay(*part, max_nodes) for part in parts]
    return found


def continuation_slots(recording: Recording, positions: int) -> NDArray[np.int64]:
    """int64 [T - 1, D]: slot of the tokens after each anchor while they are candidates, then -1."""
    anchors = len(recording.tokens[1:])
    if not anchors:
        return np.zeros((0, positions), dtype=np.int64)
    # No candidate is -2, so the output's end is where a continuation leaves its lattice.
    padded = np.concatenate([recording.tokens[1:], np.full(positions, -2, dtype=np.int64)])
    wanted = np.lib.stride_tricks.sliding_window_view(padded, positions)[:anchors]
    return slots_of(recording.ids[:anchors, :positions], wanted)


def _pools(recordings: Sequence[Recording]) -> Iterator[list[Recording]]:
    """Recordings of one width, as many as are searched together; none is divided."""
    pool: list[Recording] = []
    count = 0
    for item in recordings:
        width = pool[0].ids.shape[2] if pool else item.ids.shape[2]
        if pool and (count + len(item.tokens) > CHUNK or item.ids.shape[2] != width):
            yield pool
            pool, count = [], 0
        pool.append(item)
        count += len(item.tokens)
    if pool:
        yield pool


def _edges(
    pool: Sequence[Recording], positions: int, buffer: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The edges of all lattices of a pool, and memory for the next pool's: fresh pages would cost
    as much as the search."""
    parts = [item.edge[: len(item.tokens[1:]), :positions] for item in pool]
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0]), buffer
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    if buffer.size < np.prod(shape):
        buffer = np.empty(np.prod(shape), dtype=np.float32)
    return np.concatenate(parts, out=buffer[: np.prod(shape)].reshape(shape)), buffer


def place_best_first(anchors: Anchors, nodes: int, builder: BestFirstBuilder) -> Placed:
    """Where continuations stand in best-first trees of at most `nodes` rows."""
    edge = anchors.edge
    if not len(edge):
        # Outputs of one token have no lattice, and so no candidates either.
        return Placed(anchors.slots, np.zeros(0, dtype=np.int64))
    scores, rescore = _scores(builder, edge)
    needed, tied = places(scores, anchors.slots, nodes, rescore)
    # CaDDTree's own trees end early; its order is DDTree's.
    ordered = DDTree() if isinstance(builder, CaDDTree) else builder
    for index in np.flatnonzero(tied).tolist():
        needed[index] = anchors.built(index, ordered, nodes).needed
    if isinstance(builder, CaDDTree):
        by_marginals = np.asarray(scores[:, :, 0], dtype=np.float64)
        return Placed(needed, builder.sizes(best_marginal_scores(by_marginals, nodes)))
    size = _size(edge.shape[1], edge.shape[2], nodes)
    return Placed(needed, np.full(len(edge), size, dtype=np.int64))


def _scores(
    builder: BestFirstBuilder, edge: NDArray[np.float32]
) -> tuple[NDArray[np.floating], Rescore | None]:
    if isinstance(builder, DDTree | CaDDTree):
        return builder.scores(edge), None
    if isinstance(builder, BestFirst) and builder.temperature == 1.0:
        return edge, None
    return edge, builder.rescored


def _size(positions: int, candidates: int, nodes: int) -> int:
    """Rows of a tree of at most `nodes`: a lattice has K ** d paths of d tokens."""
    total, paths = 1, 1
    for _ in range(positions):
        paths = min(paths * candidates, nodes)
        total = min(total + paths, nodes)
    return total

"""A given path in many lattices at once, as exact replay asks after it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def path_rows(
    edge: NDArray[np.float32], slots: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]:
    """The row that each path goes through, position after position while any path goes on.

    Args:
        edge: float32 [B, D, K, K] in nats.
        slots: int64 [B, D], the path's slot at each position; -1 from where it leaves the lattice.

    Yields:
        The position, the P lattices whose path reaches it, their rows [P, K], their slots [P].
    """
    tree = np.arange(len(slots))
    above = np.zeros(len(slots), dtype=np.int64)
    for position in range(slots.shape[1]):
        slot = slots[tree, position]
        inside = slot >= 0
        tree, slot, above = tree[inside], slot[inside], above[inside]
        if not len(tree):
            return
        yield position, tree, edge[tree, position, above], slot
        above = slot


def path_costs(edge: NDArray[np.float32], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cost in nats of each path's first 1 to D tokens, [B, D]; inf from where it leaves."""
    found = np.full(slots.shape, np.inf)
    for position, tree, rows, slot in path_rows(edge, slots):
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        own = np.minimum(rows[np.arange(len(tree)), slot], 0.0)
        found[tree, position] = (found[tree, position - 1] if position else 0.0) - own
    return found

"""Scores of the nodes of many marginal trees at once, without the trees.

CaDDTree's size follows from its path scores in order, and equal scores count alike, so exact replay
needs no node of it. All lattices take their next node in the same numpy step.
"""

import numpy as np
from numpy.typing import NDArray


def best_marginal_scores(marginals: NDArray[np.float64], nodes: int) -> NDArray[np.float64]:
    """Path scores of the first nodes in DDTree's order.

    Args:
        marginals: float64 [B, D, K] in nats.
        nodes: N, the root included.

    Returns:
        float64 [B, N], the root's 0 first; -inf beyond a tree's size.
    """
    count, positions, width = marginals.shape
    # Rounding of a log-softmax may leave a score just above 0; no path may gain by it. One more
    # rank ends each row, and one more position all paths.
    rows = np.full((count, positions + 1, width + 1), -np.inf)
    rows[:, :positions, :width] = np.minimum(-np.sort(-marginals, axis=2), 0.0)
    edges, stride = rows.reshape(-1), width + 1
    trees = np.arange(count)
    first = trees * (positions + 1) * stride
    score = np.full((count, nodes), -np.inf)
    score[:, 0] = 0.0
    # Of each node taken: the next of its children, as a place in `edges`, and that path's score.
    child = np.zeros((count, nodes), dtype=np.intp)
    waiting = np.full((count, nodes), -np.inf)
    child[:, 0], waiting[:, 0] = first, edges[first]
    for node in range(1, nodes):
        parent = waiting[:, :node].argmax(axis=1)
        taken = waiting[trees, parent]
        place = child[trees, parent]
        # An exhausted tree stays where it is.
        following = place + (taken > -np.inf)
        child[trees, parent] = following
        waiting[trees, parent] = score[trees, parent] + edges[following]
        below = first + ((place - first) // stride + 1) * stride
        below = np.minimum(below, first + positions * stride)
        score[:, node], child[:, node] = taken, below
        waiting[:, node] = taken + edges[below]
    return score

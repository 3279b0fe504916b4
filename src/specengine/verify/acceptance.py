"""Acceptance: the longest root path that the target agrees with, and a bonus token.

The accepted tokens are the exact pass's own tokens, its argmax or its draws, so acceptance cannot
change the output (paper section 2.2). The caller breaks ties of logits before: `argmax` names one
token per row, the lowest id of the largest logit, as a plain greedy step would.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.trees.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one verify pass yields."""

    rows: list[int]
    """Accepted nodes from the root on, ascending; their tokens enter the committed context."""
    tokens: list[int]
    """Emitted token ids: the accepted drafted tokens, then the bonus; as many as `rows`."""


def accept_greedy(tree: DraftTree, argmax: NDArray[np.int64]) -> Acceptance:
    """Follow the target's argmax from the root while a child carries it.

    Args:
        tree: N nodes in topological order.
        argmax: int64 [N], the target's greedy token after each node.

    Siblings carry distinct tokens, so at most one child matches. The last accepted node's argmax
    is the bonus token, and the next step's anchor.

    Raises:
        ValueError: `argmax` does not hold one token per node.
    """
    if argmax.shape != (len(tree),):
        raise ValueError(f"argmax has shape {argmax.shape} for a tree of {len(tree)} nodes")
    wanted: list[int] = argmax.tolist()
    parents: list[int] = tree.parent.tolist()
    drafted: list[int] = tree.tokens.tolist()
    rows, tokens = [0], [wanted[0]]
    # Children come after their parent, so one pass in node order finds the whole path.
    for node in range(1, len(wanted)):
        if parents[node] == rows[-1] and drafted[node] == tokens[-1]:
            rows.append(node)
            tokens.append(wanted[node])
    return Acceptance(rows=rows, tokens=tokens)


def accept_walk(tree: DraftTree, choose: Callable[[int], int]) -> Acceptance:
    """Follow the target's choices from the root while a child carries the chosen token.

    Lossless for any tree that does not depend on the choices: every emitted token is a choice, and
    each is made once, in order, of the rows that are reached only.

    Args:
        tree: N nodes in topological order.
        choose: the target's token after a node.
    """
    rows, tokens = [0], [choose(0)]
    for node in range(1, len(tree)):
        if tree.parent[node] == rows[-1] and tree.tokens[node] == tokens[-1]:
            rows.append(node)
            tokens.append(choose(node))
    return Acceptance(rows=rows, tokens=tokens)

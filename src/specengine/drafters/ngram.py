"""A chain looked up in the request's own tokens, below the best path of any tree.

Text repeats itself: code, quotes and lists above all. Where the last tokens of the best drafted
path stood before in the prompt or the output, what followed them then is drafted after them now.
"""

import numpy as np

from specengine.trees import DraftTree

LONGEST, SHORTEST = 4, 2
"""Tokens that must agree: the longest match is tried first."""


class TokenHistory:
    """Committed tokens of one request, and where each short run of them last ended."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: list[int]) -> None:
        """Append committed tokens; the index follows at the next look-up."""
        self.tokens.extend(tokens)

    def clear(self) -> None:
        """Forget the request."""
        self.tokens.clear()
        self._ends.clear()
        self._indexed = 0

    def continuation(self, path: list[int], length: int) -> list[int]:
        """What followed the newest earlier occurrence of the end of history and `path`.

        Args:
            path: tokens after the committed ones: the anchor, then drafted ones.
            length: most tokens to return.

        Returns:
            Up to `length` tokens; none where fewer than two tokens agree.
        """
        self._index()
        text = self.tokens[-LONGEST:] + path
        for size in range(min(LONGEST, len(text)), SHORTEST - 1, -1):
            end = self._ends.get(tuple(text[-size:]))
            if end is not None:
                return (self.tokens[end : end + length] + path)[:length]
        return []

    def _index(self) -> None:
        for end in range(self._indexed + 1, len(self.tokens) + 1):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(self.tokens[end - size : end])] = end
        self._indexed = len(self.tokens)


def attach_chain(
    tree: DraftTree, history: TokenHistory, *, rows: int, nodes: int, depth: int
) -> DraftTree:
    """The tree with a looked-up chain below its best path, or the tree itself without a match.

    The chain takes its rows from the end of the tree, whose first nodes are the better ones, where
    both together would exceed the budget. Its nodes carry the score of the node that they hang
    from: the drafter says nothing about them.

    Args:
        tree: rooted at the anchor that follows `history`; at most `nodes` rows.
        history: the committed tokens.
        rows: most rows of the chain.
        nodes: most rows of the result, the root included.
        depth: deepest level that may be emitted.
    """
    kept = max(1, min(len(tree), nodes - rows))
    path = _best_path(tree, kept)
    leaf = path[-1]
    room = min(rows, nodes - kept, depth - int(tree.depth[leaf]))
    chain = history.continuation(tree.tokens[path].tolist(), room) if room > 0 else []
    if not chain:
        return tree
    steps = np.arange(len(chain), dtype=np.int32)
    return DraftTree(
        tokens=np.concatenate((tree.tokens[:kept], np.array(chain, dtype=np.int64))),
        parent=np.concatenate((tree.parent[:kept], np.where(steps, kept + steps - 1, leaf))).astype(
            np.int32
        ),
        depth=np.concatenate((tree.depth[:kept], tree.depth[leaf] + 1 + steps)),
        logp=np.concatenate((tree.logp[:kept], np.full(len(chain), tree.logp[leaf]))),
    )


def _best_path(tree: DraftTree, kept: int) -> list[int]:
    """Nodes from the root to a leaf of the first `kept`, the likeliest child each time."""
    path = [0]
    while True:
        children = np.flatnonzero(tree.parent[:kept] == path[-1])
        if not len(children):
            return path
        path.append(int(children[tree.logp[children].argmax()]))

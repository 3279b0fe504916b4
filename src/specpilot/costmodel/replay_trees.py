"""Exact replay of any tree builder, and the choice of the fast way where there is one."""

from collections.abc import Sequence
from typing import Protocol

from specengine.trees import (
    BUILDERS,
    CaDDTree,
    DDTree,
    DraftTree,
    OptTree,
    Sequoia,
    TreeBuilder,
)
from specpilot.costmodel.replay import (
    BestFirstReplay,
    Replayed,
    depth_at,
    lattice_at,
    replay_chain,
    replay_oracle,
    walk,
)
from specpilot.engines.base import Recording


class Replay(Protocol):
    """One tree on one recording."""

    def at(self, nodes: int) -> Replayed:
        """Replay with at most `nodes` verified rows, the root included."""
        ...


class TreeReplay:
    """Builds the tree of every step that is taken, as the live engine does.

    Of a nested builder one tree per anchor answers every budget up to `max_nodes`.
    """

    def __init__(
        self,
        recording: Recording,
        builder: TreeBuilder,
        positions: int,
        *,
        nested_to: int | None = None,
        limit: int | None = None,
    ) -> None:
        """Replay `builder` on a checked recording.

        Args:
            nested_to: largest budget asked, for a nested builder; None builds for every budget.
            limit: tokens that the request might emit; see `replay`.
        """
        self._recording, self._builder, self._positions = recording, builder, positions
        self._nested_to, self._limit = nested_to, limit
        self._seen: dict[tuple[int, int], tuple[list[int], int]] = {}

    def at(self, nodes: int) -> Replayed:
        """Replay with at most `nodes` verified rows, the root included."""

        def step(anchor: int) -> tuple[int, int]:
            needed, size = self._tree(anchor, self._nested_to or nodes)
            return sum(rows <= nodes for rows in needed), min(size, nodes)

        return walk(self._recording, step)

    def _tree(self, anchor: int, nodes: int) -> tuple[list[int], int]:
        """Rows after which 1, 2, ... tokens are accepted, and the tree's size."""
        key = anchor, nodes
        found = self._seen.get(key)
        if found is None:
            depth = depth_at(anchor, self._positions, self._limit)
            tokens = self._recording.tokens
            if depth == 0:
                found = [], 1
            else:
                lattice = lattice_at(self._recording, anchor, depth)
                tree = self._builder(lattice, int(tokens[anchor]), nodes)
                found = (
                    needed_rows(tree, tokens[anchor + 1 : anchor + 1 + depth].tolist()),
                    len(tree),
                )
            self._seen[key] = found
        return found


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


class ChainReplay:
    """The greedy chain; a budget beyond the positions changes nothing."""

    def __init__(self, recording: Recording, positions: int, limit: int | None = None) -> None:
        self._recording, self._positions, self._limit = recording, positions, limit

    def at(self, nodes: int) -> Replayed:
        """Replay with at most `nodes` verified rows, the root included."""
        return replay_chain(self._recording, min(self._positions, nodes - 1), self._limit)


class OracleReplay(ChainReplay):
    """The right candidates while there are any."""

    def at(self, nodes: int) -> Replayed:
        """Replay with at most `nodes` verified rows, the root included."""
        return replay_oracle(self._recording, min(self._positions, nodes - 1), self._limit)


def replay_of(
    recording: Recording, name: str, builder: TreeBuilder | None, positions: int, max_nodes: int
) -> Replay:
    """The fastest exact replay of a tree.

    Args:
        name: a name of `specengine.trees.BUILDERS`, or `oracle`; any other needs its builder.
        builder: a tree with parameters.
        max_nodes: largest budget that will be asked.
    """
    if name == "chain":
        return ChainReplay(recording, positions)
    if name == "oracle":
        return OracleReplay(recording, positions)
    if name == "best_first":
        return BestFirstReplay(recording, positions, max_nodes)
    chosen = BUILDERS[name] if builder is None else builder
    if isinstance(chosen, DDTree | CaDDTree):
        return BestFirstReplay(recording, positions, max_nodes, chosen)
    nested = not isinstance(chosen, Sequoia | OptTree)
    return TreeReplay(recording, chosen, positions, nested_to=max_nodes if nested else None)

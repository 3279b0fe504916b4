"""Exact replay of any tree builder, and the choice of the fast way where there is one."""

from collections.abc import Sequence
from typing import Protocol

from specengine.trees import TreeBuilder
from specpilot.costmodel.replay import (
    Replayed,
    depth_at,
    lattice_at,
    needed_rows,
    replay_chain,
    replay_oracle,
    walk,
)
from specpilot.costmodel.replay_best_first import best_first_replays, is_best_first
from specpilot.costmodel.replay_placing import placing_of
from specpilot.costmodel.replay_walks import walked_replays
from specpilot.engines.base import Recording

FEW_BUDGETS = 4
"""The walks of more budgets than these stand at most anchors, so all are answered at once."""


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


def replays_of(
    recordings: Sequence[Recording],
    tree: str,
    builders: Sequence[TreeBuilder],
    positions: int,
    budgets: Sequence[int],
) -> list[Replay]:
    """The fastest exact replay of a tree on each recording.

    Args:
        tree: its name; `chain` and `oracle` need no builder.
        builders: of each recording, where the tree has parameters fitted for it.
        budgets: all that will be asked.
    """
    if tree == "chain":
        return [ChainReplay(item, positions) for item in recordings]
    if tree == "oracle":
        return [OracleReplay(item, positions) for item in recordings]
    found: dict[int, Replay] = {}
    together: dict[tuple[int, int], list[int]] = {}
    for index, (item, builder) in enumerate(zip(recordings, builders, strict=True)):
        together.setdefault((id(builder), item.ids.shape[2]), []).append(index)
    for own in together.values():
        items = [recordings[index] for index in own]
        found |= dict(zip(own, _replays(items, builders[own[0]], positions, budgets), strict=True))
    return [found[index] for index in range(len(recordings))]


def _replays(
    recordings: Sequence[Recording],
    builder: TreeBuilder,
    positions: int,
    budgets: Sequence[int],
) -> Sequence[Replay]:
    if is_best_first(builder) and len(budgets) > FEW_BUDGETS:
        return best_first_replays(recordings, positions, max(budgets), builder)
    place = placing_of(builder)
    if place is not None:
        return walked_replays(recordings, positions, budgets, place, nested=builder.nested)
    nested_to = max(budgets) if builder.nested else None
    return [TreeReplay(item, builder, positions, nested_to=nested_to) for item in recordings]

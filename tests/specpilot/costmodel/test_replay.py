"""Exact replay equals a naive walk that builds and accepts a tree at every step."""

from collections.abc import Callable

import numpy as np
import pytest
from drawn_recordings import drawn_recording

from specengine.lattice import Lattice
from specengine.trees import (
    BestFirst,
    DDTree,
    DraftTree,
    TreeBuilder,
    build_best_first,
    build_chain,
)
from specengine.verify.acceptance import accept_greedy
from specpilot.core.errors import WorkloadError
from specpilot.costmodel import replay_best_first
from specpilot.costmodel.replay import check_recording, replay_chain, replay_oracle
from specpilot.costmodel.replay_best_first import best_first_replays
from specpilot.costmodel.replay_trees import TreeReplay
from specpilot.engines.base import Recording

Build = Callable[[Lattice, int, int], DraftTree]


def naive(item: Recording, build: Build, positions: int, nodes: int) -> list[int]:
    """The live step on the recorded output: build, verify, accept, move on."""
    tokens, anchor, lengths = item.tokens.tolist(), 0, []
    while anchor < len(tokens) - 1:
        lattice = Lattice(item.ids[anchor, :positions], item.edge[anchor, :positions])
        tree = build(lattice, tokens[anchor], nodes)
        argmax = np.full(len(tree), -1, dtype=np.int64)
        for node in range(len(tree)):
            path = tree.tokens[tree.path(node)].tolist()
            follows = tokens[anchor : anchor + len(path)] == path
            if follows and anchor + len(path) < len(tokens):
                argmax[node] = tokens[anchor + len(path)]
        accepted = accept_greedy(tree, argmax)
        emitted = [token for token in accepted.tokens if token >= 0]
        lengths.append(len(accepted.rows) - 1)
        anchor += len(emitted)
    return lengths


@pytest.mark.parametrize("seed", range(8))
def test_replay_takes_the_live_steps(seed: int) -> None:
    item = drawn_recording(seed)
    (replay,) = best_first_replays([item], positions=5, max_nodes=24)
    for nodes in (1, 2, 5, 16, 24):
        assert list(replay.at(nodes).accepted) == naive(item, build_best_first, 5, nodes)
    for positions in (1, 3, 5):
        assert list(replay_chain(item, positions).accepted) == naive(
            item, build_chain, positions, positions + 1
        )


@pytest.mark.parametrize("seed", range(8))
def test_no_tree_beats_the_oracle_and_one_row_accepts_nothing(seed: int) -> None:
    item = drawn_recording(seed)
    (replay,) = best_first_replays([item], positions=5, max_nodes=64)
    oracle = replay_oracle(item, 5).tau
    assert replay.at(1).tau == 1.0
    assert replay_chain(item, 5).tau <= oracle
    assert replay.at(64).tau <= oracle


def test_the_oracle_verifies_what_it_accepts_and_the_root() -> None:
    for seed in range(4):
        oracle = replay_oracle(drawn_recording(seed), 5)
        assert oracle.rows == sum(oracle.accepted) + len(oracle.accepted)
        assert oracle.emitted == 39


def test_damaged_recordings_are_refused() -> None:
    item = drawn_recording(0)
    item.edge[3, 1, 0, 0] = np.nan
    with pytest.raises(WorkloadError, match="non-finite"):
        check_recording(item)
    short = drawn_recording(1)
    with pytest.raises(WorkloadError, match="tokens"):
        check_recording(Recording("x", short.tokens, short.ids[:3], short.edge[:3]))


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_shortest_outputs(tokens: int) -> None:
    full = drawn_recording(0, tokens=2)
    item = Recording("r", full.tokens[:tokens], full.ids[:tokens], full.edge[:tokens])
    steps = max(tokens - 1, 0)
    (best_first,) = best_first_replays([item], 5, 8)
    for replayed in (best_first.at(8), replay_chain(item, 5)):
        assert (len(replayed.accepted), replayed.emitted) == (steps, steps)


def test_a_budget_beyond_the_built_trees_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        best_first_replays([drawn_recording(0)], 5, 8)[0].at(9)


@pytest.mark.parametrize("builder", [BestFirst(), BestFirst(1.5), DDTree()])
def test_recordings_searched_together_give_the_plain_replay(
    builder: TreeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_best_first, "CHUNK", 100)
    items = [drawn_recording(seed, tokens) for seed, tokens in enumerate((40, 1, 55, 120, 2, 40))]
    items.append(drawn_recording(6, candidates=3))
    coarse = drawn_recording(7)
    coarse.edge[:] = np.round(coarse.edge)
    items.append(coarse)
    for item, replay in zip(items, best_first_replays(items, 4, 20, builder), strict=True):
        plain = TreeReplay(item, builder, 4)
        for nodes in (2, 9, 20):
            assert replay.at(nodes) == plain.at(nodes)


def test_a_lattice_with_few_paths_gives_small_trees() -> None:
    item = drawn_recording(0, candidates=2)
    (replay,) = best_first_replays([item], 2, 20)
    assert replay.at(20).rows == 7 * len(replay.at(20).accepted)
    assert replay.at(20) == TreeReplay(item, BestFirst(), 2).at(20)


@pytest.mark.parametrize("tokens", [2, 4, 60])
def test_walks_from_the_first_anchors_are_replays_of_what_follows(tokens: int) -> None:
    item = drawn_recording(3, tokens)
    (replay,) = best_first_replays([item], 5, 12)
    for nodes in (2, 12):
        emitted, steps = 0, 0
        for start in range(min(5, tokens - 1)):
            rest = Recording("r", item.tokens[start:], item.ids[start:], item.edge[start:])
            walked = best_first_replays([rest], 5, 12)[0].at(nodes)
            emitted, steps = emitted + walked.emitted, steps + len(walked.accepted)
        assert replay.from_starts(nodes) == (emitted, steps)

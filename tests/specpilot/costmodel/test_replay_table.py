"""Tables of replays: against plain sums, and fitted trees never on what they were fitted on."""

import numpy as np
import pytest
from drawn_recordings import drawn_recording

from specengine.trees import BestFirst, TreeBuilder
from specpilot.costmodel.replay import replay_chain
from specpilot.costmodel.replay_best_first import best_first_replays
from specpilot.costmodel.replay_fit import FITTED, fitted_builders, halves
from specpilot.costmodel.replay_table import by_group, play, table
from specpilot.engines.base import Recording


def test_rows_pool_the_steps_of_the_chosen_requests() -> None:
    items = [drawn_recording(seed) for seed in range(5)]
    played = play(items, ["a"] * 5, ["chain", "best_first"], [4, 6], 5)
    rows = {(row.tree, row.nodes): row for row in table(played, [1, 3, 4])}
    chosen = [items[1], items[3], items[4]]
    trees = best_first_replays(chosen, 5, 6)
    chains = [replay_chain(item, 3) for item in chosen]
    steps = sum(len(item.accepted) for item in chains)
    assert rows["chain", 4].tau == sum(item.emitted for item in chains) / steps
    assert rows["chain", 4].rows_per_step == 4
    assert (rows["chain", 4].steps, rows["chain", 4].requests) == (steps, 3)
    emitted = sum(len(item.tokens) - 1 for item in chosen)
    taus = {
        nodes: emitted / sum(len(tree.at(nodes).accepted) for tree in trees) for nodes in (4, 6)
    }
    assert rows["best_first", 6].tau == pytest.approx(taus[6])
    assert rows["best_first", 6].value_per_node == pytest.approx((taus[6] - taus[4]) / 2)
    assert rows["chain", 4].over_reference == pytest.approx(rows["chain", 4].tau - taus[4])
    assert rows["best_first", 4].over_interval == (0.0, 0.0)
    assert rows["best_first", 4].value_per_node is None


def test_intervals_cover_the_mean_and_shrink_with_requests() -> None:
    items = [drawn_recording(seed) for seed in range(24)]
    played = play(items, ["a"] * 24, ["best_first"], [8], 5)
    widths = []
    for count in (6, 24):
        (row,) = table(played, range(count))
        assert row.interval is not None
        assert row.interval[0] < row.tau < row.interval[1]
        widths.append(row.interval[1] - row.interval[0])
    assert widths[1] < widths[0]
    (alone,) = table(played, [3])
    assert alone.interval is None


def test_intervals_are_those_of_95_percent() -> None:
    items = [drawn_recording(seed) for seed in range(60)]
    played = play(items, ["a"] * 60, ["best_first"], [8], 5)
    (row,) = table(played, range(60))
    replays = played["best_first"][8]
    steps = np.array([len(item.accepted) for item in replays])
    emitted = np.array([item.emitted for item in replays])
    # Of a ratio of sums over requests, by its linear part.
    spread = (emitted - row.tau * steps).std() * len(steps) ** 0.5 / steps.sum()
    assert row.interval is not None
    low, high = row.interval
    assert (high - low) / (2 * spread) == pytest.approx(1.96, rel=0.08)
    assert row.tau - low == pytest.approx(high - row.tau, rel=0.25)


def test_halves_alternate_within_a_benchmark() -> None:
    assert halves(["a", "b", "a", "b", "a"]) == [0, 0, 1, 1, 0]
    assert halves(["a", "b", "c", "d"]) == [0, 1, 0, 1]
    assert by_group(["a", "b", "a"]) == {"a": [0, 2], "b": [1]}


@pytest.mark.parametrize("tree", FITTED)
def test_no_request_judges_its_own_parameters(tree: str) -> None:
    items = [drawn_recording(seed) for seed in range(4)]
    groups = ["a", "a", "b", "b"]

    def parameters(recordings: list[Recording]) -> list[str]:
        builders = fitted_builders(recordings, groups, [tree], [4, 8], 5)[tree]
        return [str(vars_of(builder)) for builder in builders]

    before = parameters(items)
    for changed, half in enumerate(halves(groups)):
        after = parameters([*items[:changed], modest_recording(99), *items[changed + 1 :]])
        for index, side in enumerate(halves(groups)):
            assert (after[index] == before[index]) == (side == half)


def vars_of(builder: TreeBuilder) -> object:
    return builder.temperature if isinstance(builder, BestFirst) else builder.parameters()


def modest_recording(seed: int) -> Recording:
    """One whose target always takes what its drafter thinks only somewhat likelier."""
    item = drawn_recording(seed, tokens=400)
    edge = item.edge / 2
    edge -= np.log(np.exp(edge).sum(axis=-1, keepdims=True))
    ids, slot = item.ids.copy(), np.zeros(399, dtype=np.int64)
    for position in range(5):
        slot = edge[np.arange(399), position, slot].argmax(axis=-1)
        inside = np.arange(399 - position)
        ids[inside, position, slot[inside]] = item.tokens[1 + position :] + 100
    return Recording(item.request_id, item.tokens + 100, ids, edge.astype(np.float32))

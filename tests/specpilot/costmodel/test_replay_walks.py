"""Requests that walk side by side take the steps of the plain replay."""

import numpy as np
import pytest
from drawn_recordings import drawn_recording

from specengine.trees import (
    BestFirst,
    CaDDTree,
    Calibrated,
    DDTree,
    Eagle2,
    OptTree,
    Sequoia,
    StepCost,
    TreeBuilder,
)
from specpilot.costmodel import replay_walks
from specpilot.costmodel.replay_placing import placing_of
from specpilot.costmodel.replay_trees import FEW_BUDGETS, TreeReplay, replays_of
from specpilot.costmodel.replay_walks import Anchors, Placed, walked_replays
from specpilot.engines.base import Recording

BUDGETS = (1, 2, 9, 20)
CURVES = np.sort(np.random.default_rng(0).uniform(-4, 0, (3, 2, 900)))[..., ::-1]
BUILDERS = [
    BestFirst(),
    BestFirst(1.5),
    DDTree(),
    CaDDTree(StepCost(1.0, ((1.0, 0.05), (6.0, 0.1)))),
    Calibrated(CURVES),
    Eagle2(),
    Sequoia(((0.6, 0.3, 0.1), (0.5, 0.2, 0.1), (0.5, 0.1, 0.1))),
    OptTree(),
    OptTree(0.0),
]


def recordings() -> list[Recording]:
    items = [drawn_recording(seed, tokens) for seed, tokens in enumerate((40, 1, 55, 90, 2))]
    # As one is recorded whose first token ends it.
    none = np.zeros((0, 5, 0), dtype=np.int64), np.zeros((0, 5, 0, 0), dtype=np.float32)
    items.append(Recording("r", items[0].tokens[:1], *none))
    items.append(drawn_recording(6, candidates=3))
    coarse = drawn_recording(7)
    coarse.edge[:] = np.round(coarse.edge)
    return [*items, coarse]


def test_many_budgets_give_the_same_steps() -> None:
    items = recordings()
    many = (1, 2, 5, 9, 14, 20)
    assert len(many) > FEW_BUDGETS >= len(BUDGETS)
    for replay, item in zip(
        replays_of(items, "any", [DDTree()] * len(items), 4, many), items, strict=True
    ):
        plain = TreeReplay(item, DDTree(), 4)
        for nodes in many:
            assert replay.at(nodes) == plain.at(nodes)


@pytest.mark.parametrize("batch", [1, 16, 256])
@pytest.mark.parametrize("builder", BUILDERS, ids=lambda item: str(item)[:16])
def test_the_steps_are_those_of_the_plain_replay(
    builder: TreeBuilder, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_walks, "BATCH", batch)
    assert placing_of(builder) is not None
    items = recordings()
    found = replays_of(items, "any", [builder] * len(items), 4, BUDGETS)
    for item, replay in zip(items, found, strict=True):
        plain = TreeReplay(item, builder, 4)
        for nodes in BUDGETS:
            assert replay.at(nodes) == plain.at(nodes)


def test_only_anchors_where_a_walk_stands_are_asked_about() -> None:
    items = [drawn_recording(seed, 60) for seed in range(300)]
    asked = 0
    place = placing_of(BestFirst())
    assert place is not None

    def counted(anchors: Anchors, nodes: int) -> Placed:
        nonlocal asked
        assert len(anchors.slots) <= replay_walks.BATCH
        asked += len(anchors.slots)
        return place(anchors, nodes)

    found = walked_replays(items, 4, [16], counted, nested=True)
    steps = sum(len(replay.at(16).accepted) for replay in found)
    assert steps <= asked < 1.5 * steps < sum(len(item.tokens) - 1 for item in items)


def test_a_builder_of_no_known_class_is_built() -> None:
    class Root:
        nested = True

        def __call__(self, lattice: object, anchor: int, nodes: int) -> object:
            return BestFirst()(lattice, anchor, 1)

    assert placing_of(Root()) is None
    item = drawn_recording(0)
    (replay,) = replays_of([item], "any", [Root()], 4, (8,))
    assert set(replay.at(8).accepted) == {0}

"""Headroom by replay: which systems the ceiling's curves answer for, and what they say."""

import pytest

from specpilot.controller.operations.headroom import by_replay, can_replay
from specpilot.core.system import OptionValue, System
from specpilot.loop.facts import CeilingFacts, Factor

CEILING = CeilingFacts(
    tau_factor=1.5, kernel_factor=1.2, overhead_factor=1.0, ceiling=1.8, largest=Factor.TAU,
    tau=2.0, tau_best=3.0, best_nodes=16, seconds_per_step=1.0, profiled_seconds=1.0,
    floor_seconds=0.8, autoregressive_seconds=0.5,
    curve=((8, 2.5, 1.2), (16, 3.0, 1.4)),
    tree_temperature=1.3, tempered_curve=((8, 2.6, 1.25), (16, 3.3, 1.54)),
)  # fmt: skip
STOCK = {"tree": "chain", "tree_temperature": 1.0, "positions": 0, "nodes": 0, "linear": "plain"}
DEEP = {"tree": "best_first", "positions": 16, "nodes": 16}


def system(**options: OptionValue) -> System:
    return System(commit="0" * 40, tree_hash="0" * 40, options=STOCK | options)


def test_each_temperature_has_its_curve() -> None:
    plain, tempered = system(**DEEP), system(**DEEP, tree_temperature=1.3)
    answer = by_replay(CEILING, system(), plain)
    assert (answer.tau, answer.base_tau) == (3.0, 2.0)
    assert answer.headroom == pytest.approx(1.4 / (2.0 * 0.5) - 1)
    assert by_replay(CEILING, plain, tempered).headroom == pytest.approx(1.54 / 1.4 - 1)
    assert by_replay(CEILING, tempered, system(**DEEP | {"nodes": 8})).tau == 2.5


def test_only_replayed_trees_are_answered_for() -> None:
    plain, tempered = system(**DEEP), system(**DEEP, tree_temperature=1.3)
    assert can_replay(CEILING, system(), tempered)
    assert can_replay(CEILING, tempered, plain)
    for asked in (
        system(**DEEP, tree_temperature=1.5),
        system(**DEEP, tree_temperature="warm"),
        system(**DEEP | {"positions": 8}),
        system(**DEEP, linear="prepacked"),
        system(tree="sequoia", positions=16, nodes=16),
        system(),
    ):
        assert not can_replay(CEILING, system(), asked)
    unknown = CEILING.model_copy(update={"tree_temperature": 1.0, "tempered_curve": ()})
    assert not can_replay(unknown, system(), tempered)
    assert can_replay(unknown, system(), plain)

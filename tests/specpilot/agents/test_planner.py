"""Which directions the planner opens, in which order, and which it never opens again."""

from typing import Any

import pytest

from specpilot.agents.base import CatalogueOption, MemoryOffer
from specpilot.agents.planner import DEEP_POSITIONS, WIDE_NODES, plan_directions
from specpilot.core.verdict import Reason
from specpilot.loop.facts import CeilingFacts, DirectionHistory, Factor, PlanningFacts

STOCK = {
    "tree": "chain",
    "positions": 0,
    "nodes": 0,
    "linear": "plain",
    "fused_projections": False,
    "cuda_graphs": False,
}
CURVE = ((8, 2.5, 1.4), (16, 3.0, 1.6), (32, 3.4, 1.5), (48, 3.6, 1.3), (64, 3.7, 1.1))


def facts_of(options: dict[str, Any] | None = None, **changes: Any) -> PlanningFacts:
    """Planning facts of a CPU deployment whose tau factor leads."""
    ceiling = CeilingFacts(
        tau_factor=1.8,
        kernel_factor=1.4,
        overhead_factor=1.05,
        ceiling=1.8 * 1.4 * 1.05,
        largest=Factor.TAU,
        tau=2.4,
        tau_best=3.4,
        best_nodes=32,
        seconds_per_step=0.06,
        profiled_seconds=0.057,
        floor_seconds=0.04,
        autoregressive_seconds=0.035,
        by_class={"target_gemm": 0.04, "drafter": 0.01, "rest": 0.007},
        floor_by_class={"target_gemm": 0.03, "drafter": 0.008, "rest": 0.002},
        curve=CURVE,
    )
    values = STOCK | (options or {})
    table = {
        "round": 1,
        "phase": 1,
        "ceiling": ceiling,
        "noise": 0.002,
        "catalogue": tuple(
            CatalogueOption(name=name, value=value, explanation=name)
            for name, value in values.items()
        ),
        "promoted_options": tuple(sorted(k for k in STOCK if values[k] != STOCK[k])),
    }
    return PlanningFacts(**(table | changes))


def mechanisms(facts: PlanningFacts, maximum: int = 8, memory: tuple = ()) -> list[str]:
    """Mechanisms in the order planned."""
    return [plan.mechanism for plan in plan_directions(facts, memory, maximum)]


def test_the_largest_factor_comes_first_and_decides_what_is_left_out() -> None:
    facts = facts_of()
    assert mechanisms(facts)[0] == "best_first_tree"
    kernel = facts.ceiling.model_copy(update={"kernel_factor": 3.0, "largest": Factor.KERNEL})
    assert mechanisms(facts_of(ceiling=kernel), 2) == ["prepacked_linear", "fused_projections"]


def test_a_gpu_is_offered_what_only_it_can_run() -> None:
    offered = mechanisms(facts_of(device_kind="cuda"))
    assert {"cuda_graphs", "packed_linear"} <= set(offered)
    assert "prepacked_linear" not in offered
    assert not {"cuda_graphs", "packed_linear"} & set(mechanisms(facts_of()))
    done = facts_of({"cuda_graphs": True, "linear": "w12"}, device_kind="cuda")
    assert not {"cuda_graphs", "packed_linear"} & set(mechanisms(done))


def test_trees_on_the_gpu_are_no_direction() -> None:
    """They gain half a percent of a step at most (docs/trees.md), too little to promote."""
    best = {"tree": "best_first", "tree_temperature": 1.0, "device_tree": False, "nodes": 64}
    assert "device_tree" not in mechanisms(facts_of(best, device_kind="cuda"))


def test_planning_is_deterministic_and_within_its_limit() -> None:
    assert plan_directions(facts_of(), (), 2) == plan_directions(facts_of(), (), 2)
    assert len(plan_directions(facts_of(), (), 2)) == 2


def test_the_tree_grid_starts_with_the_best_predicted_budget() -> None:
    (plan,) = plan_directions(facts_of(), (), 1)
    assert plan.grid[0] == {"tree": "best_first", "positions": DEEP_POSITIONS, "nodes": 16}
    assert all(int(setting["nodes"]) < WIDE_NODES for setting in plan.grid)
    own = 2.4 * 0.035 / 0.06
    assert plan.expected_headroom == pytest.approx(1.6 / own - 1)


def test_a_temperature_is_offered_where_replay_says_that_it_helps() -> None:
    warm = facts_of().ceiling.model_copy(
        update={"tree_temperature": 1.3, "tempered_curve": ((16, 3.3, 1.75), (32, 3.6, 1.6))}
    )
    tempered = {"tree_temperature": 1.0}
    (plan,) = plan_directions(facts_of(tempered, ceiling=warm), (), 1)
    assert plan.grid[1] == {**plan.grid[0], "tree_temperature": 1.3}
    assert plan.expected_headroom == pytest.approx(1.75 / (2.4 * 0.035 / 0.06) - 1)
    promoted = {"tree": "best_first", "positions": DEEP_POSITIONS, "nodes": 16}
    for own, offered in ((1.0, True), (1.3, False)):
        facts = facts_of({**promoted, "tree_temperature": own}, phase=3, ceiling=warm)
        grids = {plan.mechanism: plan.grid for plan in plan_directions(facts, (), 8)}
        assert ({"tree_temperature": 1.3} in grids["tree_tuning"]) is offered
    for facts in (facts_of(tempered), facts_of(ceiling=warm)):
        (plan,) = plan_directions(facts, (), 1)
        assert not any("tree_temperature" in setting for setting in plan.grid)


def test_only_options_that_exist_are_planned() -> None:
    bare = tuple(o for o in facts_of().catalogue if o.name == "fused_projections")
    assert mechanisms(facts_of(catalogue=bare)) == ["fused_projections"]
    assert mechanisms(facts_of(catalogue=())) == []


def test_prepacking_is_for_the_cpu_only() -> None:
    assert "prepacked_linear" not in mechanisms(facts_of(device_kind="cuda"))


@pytest.mark.parametrize(
    ("reason", "promoted", "again", "again_on_another_base"),
    [
        (Reason.CLOSED_ON_BOUND, False, False, True),
        (Reason.SIGNIFICANT_GAIN, True, False, False),
        (Reason.FORCING_EVENTS, False, False, False),
        (Reason.BELOW_THRESHOLD, False, False, True),
        (Reason.LOW_POWER, False, True, True),
        (Reason.ENGINE_FAILURE, False, True, True),
        (Reason.AGENT_ENDED, False, True, True),
    ],
)
def test_a_settled_mechanism_is_not_opened_again(
    reason: Reason, promoted: bool, again: bool, again_on_another_base: bool
) -> None:
    history = DirectionHistory(
        id="r1-x",
        round=1,
        mechanism="fused_projections",
        reason=reason,
        promoted=promoted,
        same_base=True,
    )
    moved = history.model_copy(update={"same_base": False})
    for item, expected in ((history, again), (moved, again_on_another_base)):
        planned = mechanisms(facts_of(round=2, history=(item,)))
        assert ("fused_projections" in planned) is expected


def test_memory_comes_first_within_its_family_and_is_named() -> None:
    known = MemoryOffer(name="fused_projections", summary="s", options={"fused_projections": True},
                        folder="/m")  # fmt: skip
    other = MemoryOffer(name="elsewhere", summary="s", options={"linear": "prepacked"}, folder="/m")
    plans = plan_directions(facts_of(), (known, other), 8)
    entries = {plan.mechanism: plan.memory_entry for plan in plans}
    assert entries["fused_projections"] == "fused_projections"
    assert entries["elsewhere"] == "elsewhere"
    assert entries["prepacked_linear"] is None
    order = [plan.mechanism for plan in plans if plan.factor is Factor.KERNEL]
    assert order.index("fused_projections") < order.index("prepacked_linear")


def test_tuning_looks_around_a_promoted_tree_and_at_wide_ones() -> None:
    promoted = {"tree": "best_first", "positions": DEEP_POSITIONS, "nodes": 16}
    plans = plan_directions(facts_of(promoted, phase=3), (), 8)
    grids = {plan.mechanism: plan.grid for plan in plans}
    assert {"nodes": 12} in grids["tree_tuning"]
    assert {"nodes": 24} in grids["tree_tuning"]
    assert {"positions": 0} in grids["tree_tuning"]
    assert grids["wide_tree"] == ({"nodes": 48}, {"nodes": 64})


def test_wide_trees_are_not_for_batches() -> None:
    promoted = {"tree": "best_first", "positions": DEEP_POSITIONS, "nodes": 16}
    assert "wide_tree" not in mechanisms(facts_of(promoted, phase=3, concurrency=(8,)))


def test_nothing_is_tuned_when_no_tree_was_promoted() -> None:
    assert mechanisms(facts_of({"linear": "prepacked"}, phase=3)) == []

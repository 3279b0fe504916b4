"""The master's part without a language model: which directions are worth an agent.

The ceiling's largest factor picks the family that comes first; within it, memory entries come
before sweeps, and larger expected headroom before smaller (paper section 3.2). Only mechanisms that
the current best has options for are proposed. Pure and deterministic.
"""

from collections.abc import Iterable, Mapping, Sequence

from specpilot.agents.base import MemoryOffer
from specpilot.agents.scripted import Script
from specpilot.core.system import OptionValue
from specpilot.core.verdict import Reason
from specpilot.loop.facts import CeilingFacts, DirectionKind, DirectionPlan, Factor, PlanningFacts

Options = dict[str, OptionValue]

DEEP_POSITIONS = 16
"""More than the eight that drafters are usually trained for; recordings have this depth."""
WIDE_NODES = 48
"""From here on a tree is a direction of its own: more rows than a weight stream hides."""
NODE_LADDER = (4, 8, 12, 16, 24, 32, 48, 64)
GRID_SETTINGS = 3
"""Settings of one direction whose headroom is asked for: each may cost a short run."""
UNSETTLED = frozenset(
    {
        Reason.LOW_POWER,
        Reason.ENGINE_FAILURE,
        Reason.BASELINE_OUT_OF_BAND,
        Reason.FAILED_REQUESTS,
        Reason.AGENT_ENDED,
        Reason.CONFLICT,
    }
)
"""A direction that ended so said nothing about its mechanism: a later round may try it again."""
ON_ITS_BASE = frozenset({Reason.CLOSED_ON_BOUND, Reason.BELOW_THRESHOLD})
"""A direction that ended so gained too little over what it started from: packed weights lose in
eager passes, which wait for the host, and gain in captured ones."""
TREE_OPTIONS = frozenset({"tree", "positions", "nodes"})


def plan_directions(
    facts: PlanningFacts, memory: Sequence[MemoryOffer], max_directions: int
) -> tuple[DirectionPlan, ...]:
    """At most `max_directions` plans, the most promising first; empty when nothing is left."""
    if facts.phase == 3:
        plans = [plan for plan in _tuning(facts) if not _settled(plan.mechanism, facts)]
    else:
        offered = {entry.name: entry for entry in memory}
        plans = [_with_memory(plan, offered) for plan in _exploration(facts)]
        known = {plan.mechanism for plan in plans}
        plans += [_reuse(entry, facts) for entry in memory if entry.name not in known]
        plans = [plan for plan in plans if not _settled(plan.mechanism, facts)]
        plans.sort(key=lambda plan: _order(plan, facts.ceiling))
    return tuple(plans[:max_directions])


def scripted_planner(script: Script) -> "ScriptedPlanner":
    """A planner that proposes a script's directions in the first round."""
    return ScriptedPlanner(script)


class ScriptedPlanner:
    """Proposes every direction of a script once."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(
        self, facts: PlanningFacts, memory: Sequence[MemoryOffer], max_directions: int
    ) -> tuple[DirectionPlan, ...]:
        """The script's directions, in its order."""
        if facts.phase != 1 or facts.round > 1:
            return ()
        return tuple(
            DirectionPlan(
                id=item.id,
                name=item.name,
                mechanism=item.id,
                factor=Factor(item.factor),
                idea="Play the script's steps.",
                expected_headroom=item.expected_headroom,
            )
            for item in self._script.direction
        )


def _exploration(facts: PlanningFacts) -> Iterable[DirectionPlan]:
    values = {option.name: option.value for option in facts.catalogue}
    if values.keys() >= TREE_OPTIONS and values["tree"] != "best_first":
        yield from _trees(facts)
    if facts.device_kind == "cpu" and values.get("linear") == "plain":
        yield _plan(
            facts, "prepacked_linear", "Prepacked linear weights", Factor.KERNEL,
            "Reorder linear weights once at load, for the CPU's matrix units.",
            [{"linear": "prepacked"}], _class_bound(facts.ceiling, ("target_gemm", "drafter")),
        )  # fmt: skip
    if facts.device_kind == "cuda":
        yield from _gpu(facts, values)
    if values.get("fused_projections") is False:
        yield _plan(
            facts, "fused_projections", "Fused projections", Factor.KERNEL,
            "Run query, key and value, and gate and up, as one matrix product each.",
            [{"fused_projections": True}], _class_bound(facts.ceiling, ("target_gemm",)),
        )  # fmt: skip


def _gpu(facts: PlanningFacts, values: Options) -> Iterable[DirectionPlan]:
    if values.get("cuda_graphs") is False:
        yield _plan(
            facts, "cuda_graphs", "Captured passes", Factor.OVERHEAD,
            "Replay each verify pass as one CUDA graph, not as hundreds of launches.",
            [{"cuda_graphs": True}], facts.ceiling.overhead_factor - 1,
        )  # fmt: skip
    if values.get("linear") == "plain":
        yield _plan(
            facts, "packed_linear", "Lossless 12-bit weights", Factor.KERNEL,
            "Multiply from 12-bit records, which hold every weight exactly in fewer bytes.",
            [{"linear": "w12"}], _class_bound(facts.ceiling, ("target_gemm",)),
        )  # fmt: skip


def _trees(facts: PlanningFacts) -> Iterable[DirectionPlan]:
    speeds = {n: speed for n, _, speed in facts.ceiling.curve if n < WIDE_NODES}
    ranked = sorted(speeds or (16, 32), key=lambda n: (-speeds.get(n, 0.0), n))[:GRID_SETTINGS]
    grid: list[Options] = [
        {"tree": "best_first", "positions": DEEP_POSITIONS, "nodes": n} for n in ranked
    ]
    gains = [_gain(facts.ceiling, speeds[n]) for n in ranked if n in speeds]
    tempered = {n: speed for n, _, speed in facts.ceiling.tempered_curve}
    values = {option.name: option.value for option in facts.catalogue}
    if ranked[0] in tempered and values.get("tree_temperature") == 1.0:
        grid.insert(1, {**grid[0], "tree_temperature": facts.ceiling.tree_temperature})
        gains.append(_gain(facts.ceiling, tempered[ranked[0]]))
    yield _plan(
        facts, "best_first_tree", "Best-first tree", Factor.TAU,
        "Verify the best-first tree of the lattice instead of the greedy chain.",
        grid, max(gains, default=None),
    )  # fmt: skip


def _tuning(facts: PlanningFacts) -> Iterable[DirectionPlan]:
    """Around a promoted tree: its neighbours, its depth, and the rows that it did not dare."""
    values = {option.name: option.value for option in facts.catalogue}
    if not TREE_OPTIONS & set(facts.promoted_options) or values.get("tree") != "best_first":
        return
    nodes = int(values["nodes"])
    around = [n for n in NODE_LADDER if n < nodes][-1:] + [n for n in NODE_LADDER if n > nodes][:1]
    grid: list[Options] = [{"nodes": n} for n in around if n < WIDE_NODES]
    grid.append({"positions": 0 if values["positions"] == DEEP_POSITIONS else DEEP_POSITIONS})
    if facts.ceiling.tempered_curve and values.get("tree_temperature") == 1.0:
        grid.append({"tree_temperature": facts.ceiling.tree_temperature})
    yield _plan(
        facts, "tree_tuning", "Tree size and depth", Factor.TAU,
        "Try the neighbouring node budgets, the trained depth against the deeper one, and the "
        "temperature that suits the recordings.",
        grid, None, kind=DirectionKind.TUNING,
    )  # fmt: skip
    wide = [n for n, _, _ in facts.ceiling.curve if n >= WIDE_NODES and n > nodes]
    if wide and max(facts.concurrency) == 1:
        yield _plan(
            facts, "wide_tree", f"Trees of {WIDE_NODES} nodes and more", Factor.TAU,
            "Verify more rows, if a step hides them.",
            [{"nodes": n} for n in wide[:GRID_SETTINGS]], None, kind=DirectionKind.TUNING,
        )  # fmt: skip


def _plan(
    facts: PlanningFacts,
    mechanism: str,
    name: str,
    factor: Factor,
    idea: str,
    grid: Sequence[Options],
    expected: float | None,
    *,
    kind: DirectionKind = DirectionKind.EXPLORATION,
) -> DirectionPlan:
    return DirectionPlan(
        id=f"r{facts.round}-{mechanism.replace('_', '-')}",
        name=name,
        kind=kind,
        mechanism=mechanism,
        factor=factor,
        idea=idea,
        grid=tuple(grid),
        expected_headroom=expected,
    )


def _with_memory(plan: DirectionPlan, offered: Mapping[str, MemoryOffer]) -> DirectionPlan:
    entry = offered.get(plan.mechanism)
    if entry is None:
        return plan
    grid = (dict(entry.options), *(item for item in plan.grid if item != entry.options))
    return plan.model_copy(update={"memory_entry": entry.name, "grid": grid})


def _reuse(entry: MemoryOffer, facts: PlanningFacts) -> DirectionPlan:
    factor = Factor.TAU if TREE_OPTIONS & entry.options.keys() else Factor.KERNEL
    plan = _plan(facts, entry.name, entry.name, factor, entry.summary, [entry.options], None)
    return plan.model_copy(update={"memory_entry": entry.name})


def _order(plan: DirectionPlan, ceiling: CeilingFacts) -> tuple[float, bool, float, str]:
    factors = {
        Factor.TAU: ceiling.tau_factor,
        Factor.KERNEL: ceiling.kernel_factor,
        Factor.OVERHEAD: ceiling.overhead_factor,
    }
    expected = plan.expected_headroom if plan.expected_headroom is not None else 0.0
    return (-factors.get(plan.factor, 1.0), plan.memory_entry is None, -expected, plan.id)


def _settled(mechanism: str, facts: PlanningFacts) -> bool:
    earlier = [item for item in facts.history if item.mechanism == mechanism]
    return any(
        item.promoted
        or not (item.reason in UNSETTLED or (item.reason in ON_ITS_BASE and not item.same_base))
        for item in earlier
    )


def _gain(ceiling: CeilingFacts, speed: float) -> float:
    """Gain minus 1 of a predicted speedup S(N) over the starting system's own."""
    return speed * ceiling.seconds_per_step / (ceiling.tau * ceiling.autoregressive_seconds) - 1


def _class_bound(ceiling: CeilingFacts, names: Sequence[str]) -> float | None:
    """The most that these kernel classes could gain at their floors, minus 1."""
    if not ceiling.by_class or not ceiling.floor_by_class:
        return None
    spent = {str(key): value for key, value in ceiling.by_class.items()}
    floor = {str(key): value for key, value in ceiling.floor_by_class.items()}
    saved = sum(max(spent.get(n, 0.0) - floor.get(n, 0.0), 0.0) for n in names)
    share = min(saved / ceiling.seconds_per_step, 0.99)
    return 1 / (1 - share) - 1

"""`headroom`: what a change could gain, by exact replay or by a short run on a few requests.

Evidence for opening or closing a direction, never for promotion (paper section 3.2).
"""

from specpilot.controller import evidence
from specpilot.controller.attribution import attributed
from specpilot.controller.contracts import HeadroomAnswer, HeadroomArguments
from specpilot.controller.off_loop import off_loop
from specpilot.controller.operations.base import Question, within_budget
from specpilot.controller.pairing import interleaved
from specpilot.controller.repeating import repeated
from specpilot.controller.short_runs import few_requests
from specpilot.controller.timing import changed_options
from specpilot.core.errors import Refused
from specpilot.core.system import System
from specpilot.loop.facts import CeilingFacts, SpeedFacts
from specpilot.loop.run import Run

REPLAYABLE = frozenset({"tree", "tree_temperature", "positions", "nodes"})
"""Options whose effect on tau a recording answers exactly."""
_SHORT_TOKENS = 128
RECORDED_POSITIONS = 16
"""Depth of the recordings that the curve was replayed on (`loop.ceiling.POSITIONS`)."""


async def headroom(question: Question, arguments: HeadroomArguments) -> HeadroomAnswer:
    """Replay where the ceiling's curve answers, else a short run.

    Raises:
        Refused: replay was asked for and cannot answer.
        BudgetSpent: a short run is needed and a limit is reached.
        EngineFailure: the candidate failed.
    """
    run, system = question.run, question.system
    asked = run.systems.with_options(system, arguments.options) if arguments.options else system
    current = run.state.round
    if arguments.method != "microbenchmark" and current is not None and current.ceiling is not None:
        paths = run.systems.changed_paths(run.best.commit, asked.commit)
        ceiling = current.ceiling.ceiling
        if paths == ("system.toml",) and can_replay(ceiling, run.best, asked):
            return by_replay(ceiling, run.best, asked)
        if arguments.method == "replay":
            raise Refused(
                "cannot be replayed",
                where=f"options {', '.join(sorted(changed_options(run.best, asked))) or 'none'}",
                fix=f"replay answers for best-first trees of {RECORDED_POSITIONS} positions, their "
                f"node budgets and the temperatures {', '.join(map(str, _curves(ceiling)))}",
            )
    within_budget(run)
    return await by_short_run(run, question.direction, asked)


def can_replay(ceiling: CeilingFacts, base: System, asked: System) -> bool:
    """Whether a curve of the ceiling answers: best-first trees of the recorded depth, at a
    temperature that was replayed, nothing else."""
    changed = {key for key, value in asked.options.items() if base.options.get(key) != value}
    deep = [s for s in (base, asked) if s.options.get("tree") == "best_first"]
    return (
        bool(changed)
        and all(isinstance(s.options.get("nodes", 0), int) for s in deep)
        and changed <= REPLAYABLE
        and asked in deep
        and all(s.options.get("positions") == RECORDED_POSITIONS for s in deep)
        and all(_temperature(s) in _curves(ceiling) for s in deep)
    )


def by_replay(ceiling: CeilingFacts, base: System, asked: System) -> HeadroomAnswer:
    """S(N) of the asked tree over S of the base: its own tree's, or the starting system's."""
    point = _point(ceiling, asked)
    if base.options.get("tree") == "best_first":
        nodes, base_tau, speed = _point(ceiling, base)
        compared = f"{speed:.3f} of {nodes} nodes"
    else:
        base_tau = ceiling.tau
        speed = ceiling.tau * ceiling.autoregressive_seconds / ceiling.seconds_per_step
        compared = f"{speed:.3f} of the starting system"
    return HeadroomAnswer(
        headroom=point[2] / speed - 1,
        method="replay",
        tau=point[1],
        base_tau=base_tau,
        detail=f"S({point[0]}) = {point[2]:.3f} against {compared}",
    )


def _point(ceiling: CeilingFacts, system: System) -> tuple[int, float, float]:
    nodes = int(system.options.get("nodes", 0)) or ceiling.best_nodes
    curve = _curves(ceiling)[_temperature(system)]
    return min(curve, key=lambda item: abs(item[0] - nodes))


def _curves(ceiling: CeilingFacts) -> dict[float, tuple[tuple[int, float, float], ...]]:
    """The replayed curves by the temperature of their trees."""
    tempered = {ceiling.tree_temperature: ceiling.tempered_curve} if ceiling.tempered_curve else {}
    return {1.0: ceiling.curve, **tempered}


def _temperature(system: System) -> float:
    value = system.options.get("tree_temperature", 1.0)
    return float(value) if isinstance(value, int | float) else 0.0


async def by_short_run(run: Run, direction: str, system: System) -> HeadroomAnswer:
    """Rates on one short request per benchmark, base and candidate interleaved."""
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, direction, "microbenchmark"):
        base = run.best
        rates = await repeated(
            run,
            devices,
            base,
            f"headroom of {direction}",
            lambda: _short_rates(run, devices, base, system),
        )
    ratio = rates["candidate"].overall_tokens_per_second / rates["base"].overall_tokens_per_second
    return HeadroomAnswer(
        headroom=ratio - 1,
        method="microbenchmark",
        tau=rates["candidate"].tau,
        base_tau=rates["base"].tau,
        detail=f"{rates['candidate'].requests} short requests",
    )


async def _short_rates(
    run: Run, devices: tuple[str, ...], base: System, system: System
) -> dict[str, SpeedFacts]:
    arms = {
        "base": await off_loop(run.systems.export, base),
        "candidate": await off_loop(run.systems.export, system),
    }
    requests = few_requests(run.development, _SHORT_TOKENS)
    trusted = frozenset({"base"})
    rates = {}
    seed = run.order_seed(f"headroom {system.tree_hash}")
    async with interleaved(run.arena(devices), arms, requests, seed=seed, trusted=trusted) as (
        measured,
        _,
    ):
        for name, arm in measured.items():
            with attributed(name in trusted):
                rates[name] = evidence.speed(arm)
    return rates

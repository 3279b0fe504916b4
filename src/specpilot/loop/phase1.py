"""Phases 1 and 3: ask the planner which directions are worth an agent."""

from specpilot.controller.timing import changed_options
from specpilot.loop.events import DirectionsPlanned
from specpilot.loop.facts import DirectionHistory, DirectionPlan, PlanningFacts
from specpilot.loop.plan import PlanDirections, promoted_in
from specpilot.loop.run import Run


def plan_directions(run: Run, action: PlanDirections) -> None:
    """Journal the planner's answer. Tuning needs something promoted in this round to tune."""
    if action.phase == 3 and not promoted_in(run.state, action.round):
        plans: tuple[DirectionPlan, ...] = ()
    else:
        offers = run.parts.memory.offers(run.best.options)
        maximum = run.deployment.agent.max_directions
        plans = run.parts.plan_directions(planning_facts(run, action), offers, maximum)
    run.emit(DirectionsPlanned(round=action.round, phase=action.phase, plans=_fresh(run, plans)))


def planning_facts(run: Run, action: PlanDirections) -> PlanningFacts:
    """Measured facts of the current best, and what became of earlier directions."""
    current = run.state.round
    if current is None or current.ceiling is None:
        raise ValueError("the ceiling is measured before directions are planned")
    history = tuple(
        DirectionHistory(
            id=item.plan.id,
            round=item.round,
            mechanism=item.plan.mechanism,
            reason=item.closed.reason,
            headroom=item.closed.headroom,
            promoted=item.promoted is not None,
            same_base=item.base == run.best.commit,
        )
        for item in run.state.directions.values()
        if item.closed is not None
    )
    return PlanningFacts(
        round=action.round,
        phase=3 if action.phase == 3 else 1,
        ceiling=current.ceiling.ceiling,
        noise=run.noise,
        catalogue=run.systems.catalogue(run.best),
        promoted_options=tuple(sorted(changed_options(run.stock, run.best))),
        history=history,
        device_kind="cpu" if run.deployment.platform.devices[0] == "cpu" else "cuda",
        concurrency=run.deployment.regime.concurrency,
    )


def _fresh(run: Run, plans: tuple[DirectionPlan, ...]) -> tuple[DirectionPlan, ...]:
    """Plans under ids that nothing in the run has yet: an id names a branch and a socket."""
    taken = set(run.state.directions)
    fresh = []
    for plan in plans:
        name, number = plan.id, 2
        while name in taken:
            name, number = f"{plan.id}-{number}", number + 1
        taken.add(name)
        fresh.append(plan.model_copy(update={"id": name}))
    return tuple(fresh)

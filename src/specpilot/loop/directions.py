"""Running one direction: worktree, socket, agent, and the reason it ended."""

from specpilot.agents.base import Brief
from specpilot.agents.events import CostEvent, ErrorEvent, ResultEvent, TextEvent, ToolCallEvent
from specpilot.controller.off_loop import off_loop
from specpilot.controller.service import direction_socket
from specpilot.core.verdict import Reason
from specpilot.loop.events import (
    AgentEnded,
    AgentNoted,
    AgentStarted,
    CostRecorded,
    DirectionClosed,
    DirectionOpened,
)
from specpilot.loop.plan import RunDirection
from specpilot.loop.run import Run
from specpilot.loop.state import Direction
from specpilot.sandbox.foreign import one_line

_NOTE_LENGTH = 300


async def run_direction(run: Run, action: RunDirection) -> None:
    """Run an agent on one idea to its end; a restarted one begins from the base again."""
    direction = action.direction
    item = run.state.directions[direction]
    if item.base is None:
        run.emit(DirectionOpened(direction=direction, round=item.round, base=run.best.commit))
        item = run.state.directions[direction]
    if not _is_closed_by_agent(item):
        await _run_agent(run, item)
    run.emit(closing(run.state.directions[direction]))


def closing(item: Direction) -> DirectionClosed:
    """Why a direction is over: promoted, closed on a bound, its last verdict, or its agent."""
    headroom = _headroom(item)
    verdict = item.last_verdict()
    bound = [a for a in item.answers.values() if a.operation == "close" and a.ok]
    if item.promoted is not None:
        reason, detail = Reason.SIGNIFICANT_GAIN, "promoted"
    elif verdict is not None:
        reason, detail = verdict.reason, verdict.detail
    elif bound:
        reason, detail = Reason.CLOSED_ON_BOUND, str(bound[-1].answer["result"]["reason"])
    else:
        refused = [a.answer["error"] for a in item.answers.values() if not a.ok]
        last = refused[-1] if refused else {}
        reason = Reason(last.get("reason") or Reason.AGENT_ENDED)
        detail = str(last.get("what", "the agent submitted nothing"))
    return DirectionClosed(direction=item.plan.id, reason=reason, detail=detail, headroom=headroom)


def _headroom(item: Direction) -> float | None:
    answers = [
        float(a.answer["result"]["headroom"])
        for a in item.answers.values()
        if a.operation == "headroom" and a.ok
    ]
    return max(answers) if answers else item.plan.expected_headroom


def _is_closed_by_agent(item: Direction) -> bool:
    return any(a.operation == "close" and a.ok for a in item.answers.values())


async def _run_agent(run: Run, item: Direction) -> None:
    direction, base = item.plan.id, item.base
    if base is None:
        raise ValueError("a direction is opened before its agent starts")
    worktree = await off_loop(run.systems.open_worktree, direction, base)
    brief = make_brief(run, item, base)
    agent = run.parts.make_agent(run.deployment, brief)
    start = item.agent_starts + 1
    limits = run.agent_limits()
    state = run.folder / "agents" / direction
    state.mkdir(parents=True, exist_ok=True)
    error: str | None = None
    async with direction_socket(run, direction) as socket:
        run.emit(AgentStarted(direction=direction, agent=agent.name, start=start))
        workspace = run.parts.make_workspace(worktree, state, socket)
        stated = False
        try:
            async for event in agent.start(brief, workspace, limits):
                match event:
                    case CostEvent():
                        stated = True
                        run.emit(
                            CostRecorded(
                                direction=direction, start=start, usd=event.total_usd, known=True
                            )
                        )
                    case TextEvent():
                        _note(run, direction, event.text)
                    case ToolCallEvent():
                        _note(run, direction, f"{event.tool} {event.arguments}")
                    case ResultEvent():
                        _note(run, direction, event.summary)
                    case ErrorEvent():
                        error = one_line(f"{event.code}: {event.message}", _NOTE_LENGTH)
                    case _:
                        pass
        finally:
            await agent.stop()
    if not stated and run.deployment.agent.kind == "command":
        usd = limits.max_usd or 0.0
        run.emit(CostRecorded(direction=direction, start=start, usd=usd, known=False))
    run.emit(AgentEnded(direction=direction, error=error))


def make_brief(run: Run, item: Direction, base: str) -> Brief:
    """All that the direction's agent is told."""
    system = run.systems.system(base)
    current = run.state.round
    ceiling: dict[str, float] = {}
    facts: dict[str, float] = {"noise": run.noise}
    if current is not None and current.ceiling is not None:
        found = current.ceiling.ceiling
        ceiling = {
            "tau": found.tau_factor,
            "kernel": found.kernel_factor,
            "overhead": found.overhead_factor,
            "ceiling": found.ceiling,
        }
        facts |= {
            "tau": found.tau,
            "tau_best": found.tau_best,
            "best_nodes": found.best_nodes,
            "seconds_per_step": found.seconds_per_step,
        }
    plan = item.plan
    entry = plan.memory_entry
    offers = run.parts.memory.offers(system.options)
    return Brief(
        direction_id=plan.id,
        name=plan.name,
        mechanism=plan.mechanism,
        factor=plan.factor,
        expected_headroom=plan.expected_headroom,
        base_commit=base,
        grid=plan.grid,
        catalogue=run.systems.catalogue(system),
        memory=tuple(offer for offer in offers if entry is None or offer.name == entry),
        ceiling=ceiling,
        facts=facts,
        max_attempts=run.deployment.budget.max_attempts_per_direction,
        limits=run.agent_limits(),
    )


def _note(run: Run, direction: str, text: str) -> None:
    line = one_line(text, _NOTE_LENGTH)
    if line:
        run.emit(AgentNoted(direction=direction, note=line))

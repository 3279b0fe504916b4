"""Phase 2: pieces that gained too little alone are stacked on the best, one at a time, re-timed.

Many changes gain too little to promote alone, but enough together (paper section 3.2). After each
piece the stack is timed under the same rule; a piece that does not raise the stack is dropped.
"""

from specpilot.controller.off_loop import off_loop
from specpilot.controller.operations.time_and_submit import attempt_key
from specpilot.controller.systems import RebaseConflict
from specpilot.controller.timing import time_attempt
from specpilot.core.system import System
from specpilot.core.verdict import Reason, Verdict, VerdictKind
from specpilot.loop.directions import closing
from specpilot.loop.events import AttemptJudged, DirectionOpened, DirectionsPlanned, Noticed
from specpilot.loop.facts import DirectionKind, DirectionPlan
from specpilot.loop.plan import Integrate, PlanDirections
from specpilot.loop.run import Run
from specpilot.loop.state import Direction


def plan_integration(run: Run, action: PlanDirections) -> None:
    """One integration direction when there is a piece that may pay in a stack."""
    pieces = stackable(run, action.round)
    plans: tuple[DirectionPlan, ...] = ()
    if pieces:
        names = ", ".join(item.plan.id for item, _ in pieces)
        plans = (
            DirectionPlan(
                id=f"r{action.round}-integration",
                name="Integration",
                kind=DirectionKind.INTEGRATION,
                mechanism="stack",
                factor=pieces[0][0].plan.factor,
                idea=f"Stack {names} on the current best, one at a time.",
            ),
        )
    run.emit(DirectionsPlanned(round=action.round, phase=2, plans=plans))


def stackable(run: Run, number: int) -> list[tuple[Direction, AttemptJudged]]:
    """Directions whose last attempt gained something, was sound, and was not promoted."""
    found = []
    for item in run.state.directions.values():
        judged = [a.judged for a in item.attempts.values() if a.judged is not None]
        if (
            item.round == number
            and item.plan.kind is DirectionKind.EXPLORATION
            and item.promoted is None
            and judged
            and _positive(judged[-1], run.noise)
        ):
            found.append((item, judged[-1]))
    found.sort(key=lambda pair: -_point(pair[1].verdict))
    # One piece on the base it was timed on is the attempt that exists already.
    if len(found) == 1 and found[0][1].baseline == run.best:
        return []
    return found


async def integrate(run: Run, action: Integrate) -> None:
    """Stack the pieces; recorded attempts are taken from the journal."""
    direction = action.direction
    item = run.state.directions[direction]
    if item.base is None:
        run.emit(DirectionOpened(direction=direction, round=item.round, base=run.best.commit))
    base = run.state.directions[direction].base
    if base is None:
        raise ValueError("an integration is opened before it stacks")
    kept: list[str] = []
    best_point = 1.0
    for piece, judged in stackable(run, item.round):
        change = judged.system.commit
        stack = await off_loop(_stack, run, base, [*kept, change])
        if stack is None:
            run.emit(Noticed(message=f"{piece.plan.id} conflicts with the stack"))
            continue
        key = attempt_key(direction, stack.tree_hash)
        known = run.state.directions[direction].attempts.get(key)
        result = None if known is None else known.judged
        if result is None:
            result = await time_attempt(run, direction, key, stack, submitted=True)
        point = _point(result.verdict)
        if result.verdict.kind is VerdictKind.PROMOTED:
            kept.append(change)
            best_point = 1.0
        elif point > best_point:
            kept.append(change)
            best_point = point
    run.emit(closing(run.state.directions[direction]))


def _stack(run: Run, base: str, changes: list[str]) -> System | None:
    """The changes on the base, one after the other; None where two edit the same lines."""
    system = run.systems.system(base)
    try:
        for change in changes:
            system = run.systems.rebase(change, system.commit)
    except RebaseConflict:
        return None
    return system


def _positive(judged: AttemptJudged, noise: float) -> bool:
    """Sound, and more than nothing looks like on this machine."""
    sound = judged.verdict.reason in (Reason.BELOW_THRESHOLD, Reason.LOW_POWER)
    return sound and _point(judged.verdict) > 1.0 + noise


def _point(verdict: Verdict) -> float:
    return 0.0 if verdict.gain is None else verdict.gain.overall.point

"""The end of rounds and of the run: memory, what the next round starts from, the outcome."""

from specpilot.controller.noise import spell_limit
from specpilot.core.errors import EngineFailure
from specpilot.core.verdict import Reason, VerdictKind
from specpilot.loop.ceiling import measure_ceiling
from specpilot.loop.events import MemoryJudged, Noticed, RoundFinished, RunFinished
from specpilot.loop.plan import AdmitMemory, FinishRound, FinishRun, all_void
from specpilot.loop.run import Run
from specpilot.loop.state import RunState


def admit_memory(run: Run, action: AdmitMemory) -> None:
    """Keep a promoted mechanism as an entry if it reproduces its source system exactly."""
    entry, admitted, detail = run.parts.memory.admit(run, action.direction)
    run.emit(
        MemoryJudged(
            round=action.round,
            direction=action.direction,
            entry=entry,
            admitted=admitted,
            detail=detail,
        )
    )


async def finish_round(run: Run, action: FinishRound) -> None:
    """A confirmed best stays; a rejected one falls back to what the round began with."""
    current = run.state.rounds[action.round - 1]
    final = current.final
    kept = final is not None and _stands(final.verdict.kind, final.verdict.reason)
    best = run.best if kept or final is None else current.start
    after = None
    if best != current.start and run.state.budget is None:
        try:
            after, _ = await measure_ceiling(run, best, f"ceiling-after-{action.round}")
        except EngineFailure as error:
            # It was promoted for its speed, which this does not touch: the round is over without.
            run.emit(Noticed(message=f"no ceiling after round {action.round}: {error}"))
    run.systems.name("best", best.commit)
    run.emit(RoundFinished(round=action.round, best=best, ceiling_after=after))


def finish_run(run: Run, action: FinishRun) -> None:
    """Count what happened and write the last event."""
    finals = [item.final for item in run.state.rounds if item.final is not None]
    accepted = [item for item in finals if item.verdict.kind is VerdictKind.PROMOTED]
    promoted = [item for item in run.state.directions.values() if item.promoted is not None]
    detail = finals[-1].verdict.detail if finals else _why_nothing(run.state)
    if run.state.budget is not None:
        detail = f"{run.state.budget.limit} is spent; {detail}"
    run.emit(
        RunFinished(
            outcome=action.outcome,
            detail=detail,
            promoted=len(promoted),
            attempts=len(run.state.attempts()),
            confirmed_share=len(accepted) / len(finals) if finals else None,
        )
    )


def _why_nothing(state: RunState) -> str:
    """What a run without a sealed final comes to, in words that hold for it."""
    promoted = [item for item in state.directions.values() if item.promoted is not None]
    judged = [item.judged for item in state.attempts() if item.judged is not None]
    if promoted:
        return f"{len(promoted)} promoted in development, no sealed final was played"
    if all_void(state):
        return f"all {len(judged)} timed attempts are void, such as: {judged[-1].verdict.detail}"
    if not judged:
        return "nothing was timed" if state.directions else "no direction was opened"
    limit = "" if state.noise is None else f"; {spell_limit(state.noise.noise)}"
    return f"none of {len(judged)} timed attempts was promoted{limit}"


def _stands(kind: VerdictKind, reason: Reason) -> bool:
    """Unconfirmed for want of isolation is not rejected: the next round may build on it."""
    return kind is VerdictKind.PROMOTED or reason is Reason.ISOLATION_TOO_WEAK

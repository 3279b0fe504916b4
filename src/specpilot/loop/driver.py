"""Executes what the plan asks for, until it asks for nothing. Holds no state of its own.

Actions that may run together do. When one fails, the others are cancelled, their agents and servers
end with them, and the error goes to the caller; the journal says how far everything came.
"""

import asyncio

from specpilot.controller.sealed_final import judge_final
from specpilot.controller.timing import promote_if_earned
from specpilot.loop import ceiling, directions, ending, integration, phase0, phase1
from specpilot.loop.budget import budget_reached
from specpilot.loop.events import PhaseStarted
from specpilot.loop.plan import (
    Action,
    AdmitMemory,
    CharacteriseStock,
    CommitStock,
    CompletePromotion,
    FinishRound,
    FinishRun,
    Integrate,
    JudgeFinal,
    MeasureCeiling,
    MeasureNoise,
    PlanDirections,
    RunDirection,
    SplitWorkload,
    StartPhase,
    next_actions,
)
from specpilot.loop.run import Run


async def drive(run: Run) -> None:
    """Run to the last event.

    Raises:
        SpecPilotError: the first failure of an action; the run can be resumed.
    """
    run.failure = asyncio.get_running_loop().create_future()
    working: dict[Action, asyncio.Task[None]] = {}
    try:
        while True:
            _check_budget(run)
            for action in next_actions(run.state):
                if action not in working and not (working and isinstance(action, FinishRun)):
                    working[action] = asyncio.create_task(execute(run, action))
            if not working:
                return
            await asyncio.wait(
                [*working.values(), run.failure], return_when=asyncio.FIRST_COMPLETED
            )
            if run.failure.done():
                run.failure.result()
            for action in [item for item, task in working.items() if task.done()]:
                working.pop(action).result()
    finally:
        for task in working.values():
            task.cancel()
        await asyncio.gather(*working.values(), return_exceptions=True)
        run.failure.cancel()


async def execute(run: Run, action: Action) -> None:
    """One action; when it returns, the journal holds the event that ends it."""
    match action:
        case CommitStock():
            phase0.commit_stock(run)
        case SplitWorkload():
            phase0.split_workload(run)
        case MeasureNoise():
            await phase0.measure_noise(run)
        case CharacteriseStock():
            await phase0.characterise_stock(run)
        case StartPhase():
            run.emit(PhaseStarted(round=action.round, phase=action.phase))
        case MeasureCeiling():
            await ceiling.measure_round_ceiling(run, action.round)
        case PlanDirections(phase=2):
            integration.plan_integration(run, action)
        case PlanDirections():
            phase1.plan_directions(run, action)
        case RunDirection():
            await directions.run_direction(run, action)
        case Integrate():
            await integration.integrate(run, action)
        case CompletePromotion():
            _complete_promotion(run)
        case JudgeFinal():
            await judge_final(run, action.round)
        case AdmitMemory():
            ending.admit_memory(run, action)
        case FinishRound():
            await ending.finish_round(run, action)
        case FinishRun():
            ending.finish_run(run, action)


def _complete_promotion(run: Run) -> None:
    judged = run.state.unfinished_promotion()
    if judged is not None:
        promote_if_earned(run, judged)


def _check_budget(run: Run) -> None:
    """Journal the first limit that is reached, once."""
    if run.state.budget is None and (reached := budget_reached(run.state)) is not None:
        run.emit(reached)

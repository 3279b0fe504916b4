"""From a request line to a recorded answer; `contracts` says what each operation takes.

Answers are keyed by direction, operation, tree and arguments: a restarted agent gets the recorded
answer, and an attempt counts once, however often it is asked for.
"""

import time
from typing import Any

from specpilot.agents.base import Operation
from specpilot.controller.contracts import (
    CheckArguments,
    CloseArguments,
    ForceArguments,
    HeadroomArguments,
    TimeArguments,
    parse_request,
)
from specpilot.controller.fingerprinting import known_to
from specpilot.controller.off_loop import Halted, off_loop
from specpilot.controller.operations.base import Question
from specpilot.controller.operations.check import check
from specpilot.controller.operations.close import close
from specpilot.controller.operations.force import force
from specpilot.controller.operations.headroom import headroom
from specpilot.controller.operations.time_and_submit import time_or_submit
from specpilot.controller.systems import RebaseConflict
from specpilot.controller.trees import ForbiddenPath
from specpilot.core.errors import BudgetSpent, DamagedRun, EngineFailure, Refused, SpecPilotError
from specpilot.core.record import Record, content_hash
from specpilot.core.system import System
from specpilot.core.verdict import Reason
from specpilot.loop.events import OperationAnswered
from specpilot.loop.run import Run


async def answer(run: Run, direction: str, message: dict[str, Any]) -> dict[str, Any]:
    """One request line answered, recorded, and answered the same when it comes again.

    Raises:
        JournalError: the answer could not be recorded, so it is not given.
        DamagedRun: what the answer needs is gone from the run folder; the run ends.
        InfrastructureFailure: no answer, through no fault of the candidate; the run ends.
    """
    try:
        operation, arguments = parse_request(message)
    except Refused as error:
        return refusal(error)
    try:
        system = await _system(run, direction, operation)
    except DamagedRun:
        raise
    except SpecPilotError as error:
        key = content_hash([direction, operation, "not collected", str(error)])
        return _record(run, direction, operation, key, refusal(error), 0.0)
    tree = "" if system is None else system.tree_hash
    key = content_hash([direction, operation, tree, arguments.to_json()])
    known = run.state.directions[direction].answers.get(key)
    if known is not None:
        return known.answer
    started = time.monotonic()
    try:
        result = await _perform(run, direction, operation, arguments, system)
        answered: dict[str, Any] = {"ok": True, "result": result.to_json()}
    except BudgetSpent as error:
        # Not recorded: a resumed run may have a larger budget.
        return refusal(error)
    except (Refused, RebaseConflict, EngineFailure) as error:
        answered = refusal(error)
    return _record(run, direction, operation, key, answered, time.monotonic() - started)


def _record(
    run: Run,
    direction: str,
    operation: Operation,
    key: str,
    answered: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    if key not in run.state.directions[direction].answers:
        run.emit(
            OperationAnswered(
                direction=direction,
                operation=operation,
                key=key,
                ok=bool(answered["ok"]),
                answer=answered,
                seconds=seconds,
            )
        )
    return answered


def refusal(error: SpecPilotError) -> dict[str, Any]:
    """An error as an answer line."""
    return {
        "ok": False,
        "error": {
            "what": error.what,
            "where": error.where,
            "fix": error.fix,
            "exit_code": int(error.exit_code),
            "reason": _reason(error),
        },
    }


def _reason(error: SpecPilotError) -> Reason | None:
    """What the direction ends with if nothing else happens to it."""
    match error:
        case ForbiddenPath():
            return Reason.FORBIDDEN_PATH
        case RebaseConflict():
            return Reason.CONFLICT
        case EngineFailure():
            return Reason.CHECK_FAILED
        case BudgetSpent():
            return Reason.ATTEMPTS_SPENT
        case _:
            return None


async def _system(run: Run, direction: str, operation: Operation) -> System | None:
    """What the worktree holds now; headroom may ask about options before anything is committed."""
    if operation is Operation.CLOSE:
        return None
    item = run.state.directions[direction]
    if item.base is None:
        raise Refused("is not open", where=direction, fix="start the direction first")
    try:
        return await off_loop(_collect, run, direction, item.base)
    except (ForbiddenPath, Halted):
        raise
    except Refused:
        if operation is Operation.HEADROOM:
            return run.systems.system(item.base)
        raise


def _collect(run: Run, direction: str, base: str) -> System:
    return run.systems.collect(direction, base, known_to(run))


async def _perform(
    run: Run, direction: str, operation: Operation, arguments: Record, system: System | None
) -> Record:
    if isinstance(arguments, CloseArguments):
        return close(arguments)
    if system is None:
        raise ValueError(f"operation {operation} is about a commit")
    question = Question(run, direction, operation, system)
    match arguments:
        case HeadroomArguments():
            return await headroom(question, arguments)
        case CheckArguments():
            return await check(question)
        case ForceArguments():
            return await force(question)
        case TimeArguments():
            return await time_or_submit(question, arguments)
        case _:
            raise ValueError(f"operation {operation} has no handler")

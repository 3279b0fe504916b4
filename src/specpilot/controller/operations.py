"""The operations behind a direction's socket; `contracts` says what each takes and answers.

Answers are keyed by direction, operation, tree and arguments: a restarted agent gets the recorded
answer, and an attempt counts once, however often it is asked for.
"""

import time
from collections.abc import Sequence
from typing import Any

from specpilot.agents.base import Operation
from specpilot.controller import evidence, headroom
from specpilot.controller.attribution import attributed
from specpilot.controller.contracts import (
    CheckAnswer,
    CloseAnswer,
    CloseArguments,
    ForceAnswer,
    HeadroomArguments,
    TimeAnswer,
    TimeArguments,
    parse_request,
)
from specpilot.controller.outcomes import failed, require_answers
from specpilot.controller.plausible import counters_of
from specpilot.controller.repeating import repeated
from specpilot.controller.servers import play_once, serving
from specpilot.controller.systems import RebaseConflict
from specpilot.controller.timing import changed_options, promote_if_earned, time_attempt
from specpilot.controller.trees import ForbiddenPath
from specpilot.core.errors import BudgetSpent, EngineFailure, Refused, SpecPilotError
from specpilot.core.record import Record, content_hash
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import System
from specpilot.core.verdict import Reason, VerdictKind
from specpilot.loop.budget import budget_reached
from specpilot.loop.events import AttemptJudged, OperationAnswered
from specpilot.loop.facts import ForcingFacts
from specpilot.loop.run import Run

_CHECK_TOKENS = 64
_CHECKED_PREFIX = 4


async def answer(run: Run, direction: str, message: dict[str, Any]) -> dict[str, Any]:
    """One request line answered, recorded, and answered the same when it comes again.

    Raises:
        JournalError: the answer could not be recorded, so it is not given.
    """
    try:
        operation, arguments = parse_request(message)
    except Refused as error:
        return refusal(error)
    try:
        system = _system(run, direction, operation)
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


def _system(run: Run, direction: str, operation: Operation) -> System | None:
    """What the worktree holds now; headroom may ask about options before anything is committed."""
    if operation is Operation.CLOSE:
        return None
    item = run.state.directions[direction]
    if item.base is None:
        raise Refused("is not open", where=direction, fix="start the direction first")
    try:
        return run.systems.collect(direction, item.base)
    except ForbiddenPath:
        raise
    except Refused:
        if operation is Operation.HEADROOM:
            return run.systems.system(item.base)
        raise


async def _perform(
    run: Run, direction: str, operation: Operation, arguments: Record, system: System | None
) -> Record:
    if isinstance(arguments, HeadroomArguments) and system is not None:
        return await _headroom(run, direction, arguments, system)
    if isinstance(arguments, TimeArguments) and system is not None:
        return await _time(run, direction, operation, arguments, system)
    if operation is Operation.CHECK and system is not None:
        return await _check(run, direction, system)
    if operation is Operation.FORCE and system is not None:
        return await _force(run, direction, system)
    if isinstance(arguments, CloseArguments):
        return CloseAnswer(reason=arguments.reason, bound=arguments.bound)
    raise ValueError(f"operation {operation} has no handler")


async def _headroom(
    run: Run, direction: str, arguments: HeadroomArguments, system: System
) -> Record:
    asked = run.systems.with_options(system, arguments.options) if arguments.options else system
    current = run.state.round
    if arguments.method != "microbenchmark" and current is not None and current.ceiling is not None:
        paths = run.systems.changed_paths(run.best.commit, asked.commit)
        if paths == ("system.toml",) and headroom.can_replay(run.best, asked):
            return headroom.by_replay(current.ceiling.ceiling, run.best, asked)
        if arguments.method == "replay":
            raise Refused(
                "cannot be replayed",
                where=f"options {', '.join(sorted(changed_options(run.best, asked))) or 'none'}",
                fix=f"replay answers for best-first trees of {headroom.RECORDED_POSITIONS} "
                "positions and their node budgets",
            )
    _within_budget(run)
    return await headroom.by_short_run(run, direction, asked)


async def _check(run: Run, direction: str, system: System) -> Record:
    _within_budget(run)
    requests = headroom.few_requests(run.development, _CHECK_TOKENS)
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, direction, "check"):
        known = evidence.known_outputs(run, run.best) or await repeated(
            run,
            devices,
            run.best,
            f"check of {direction}",
            lambda: _outputs(run, devices, requests),
        )
        checkout = run.systems.export(system)
        async with serving(run.arena(devices), checkout, requests) as server:
            outcomes = [await play_once(server, request) for request in requests]
            activations = (await counters_of(server)).activations
    pairs = [
        (known[request.id][: request.max_new_tokens], outcome.output_token_ids)
        for request, outcome in zip(requests, outcomes, strict=True)
    ]
    identical = sum(base == new for base, new in pairs)
    # Near-ties part outputs sooner or later, which forcing judges; a broken change does at once.
    begun = sum(base[:_CHECKED_PREFIX] == new[:_CHECKED_PREFIX] for base, new in pairs)
    lost = failed(outcomes)
    detail = f"{identical} of {len(requests)} outputs identical, {begun} begin alike"
    return CheckAnswer(
        passed=not lost and 2 * begun >= len(requests),
        tree_hash=system.tree_hash,
        requests=len(requests),
        identical=identical,
        activations=activations,
        detail=lost[0].error or "a request failed" if lost else detail,
    )


async def _outputs(
    run: Run, devices: tuple[str, ...], requests: Sequence[Request]
) -> dict[str, tuple[int, ...]]:
    with attributed(trusted=True):
        async with serving(run.arena(devices), run.systems.export(run.best), requests) as server:
            played = [await play_once(server, item) for item in requests]
        require_answers(
            played, where="the current best", fix="see its server's log in the run folder"
        )
    return {outcome.request_id: outcome.output_token_ids for outcome in played}


async def _force(run: Run, direction: str, system: System) -> Record:
    _within_budget(run)
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, direction, "token forcing"):
        checkout = run.systems.export(system)
        async with serving(run.arena(devices), checkout, run.development) as server:
            outcomes = [await play_once(server, request) for request in run.development]
        require_answers(
            outcomes,
            where=f"system {system.tree_hash[:12]}",
            fix="make every request answer before forcing it",
        )
        facts = await repeated(
            run,
            devices,
            run.stock,
            f"token forcing of {direction}",
            lambda: _forced(run, devices, outcomes),
        )
    return ForceAnswer(
        accepted=facts.accepted,
        tree_hash=system.tree_hash,
        tokens=facts.tokens,
        mismatch_rate=facts.mismatch_rate,
        stock_mismatch_rate=facts.stock_mismatch_rate,
        large_margin_events=facts.large_margin_events,
        unexplained=facts.unexplained,
        detail=facts.detail,
    )


async def _forced(
    run: Run, devices: tuple[str, ...], outcomes: Sequence[RequestOutcome]
) -> ForcingFacts:
    with attributed(trusted=True):
        async with evidence.scorer_of(run, devices) as scorer:
            return await evidence.force(run, scorer, run.development, outcomes)


async def _time(
    run: Run, direction: str, operation: Operation, arguments: TimeArguments, system: System
) -> Record:
    submitted = operation is Operation.SUBMIT
    key = attempt_key(direction, system.tree_hash, arguments.retry)
    while True:
        attempt = run.state.directions[direction].attempts.get(key)
        judged = None if attempt is None else attempt.judged
        if judged is None:
            if attempt is None:
                _may_attempt(run, direction, system, arguments.retry)
            _within_budget(run)
            judged = await time_attempt(run, direction, key, system, submitted=submitted)
        elif submitted and not judged.submitted and judged.baseline == run.best:
            judged = judged.model_copy(update={"submitted": True})
            run.emit(judged)
            promote_if_earned(run, judged)
        if not submitted or not _outdated(run, judged):
            return _time_answer(run, direction, judged)
        # The best changed since: what was earned then says nothing about now.
        key = content_hash([key, run.best.tree_hash])


def attempt_key(direction: str, tree_hash: str, retry: int = 0) -> str:
    """Names one attempt: the same tree asked for again is the same attempt."""
    return content_hash([direction, "attempt", tree_hash, retry])


def _outdated(run: Run, judged: AttemptJudged) -> bool:
    """Whether an attempt worth promotion was not promoted because the best moved on."""
    return (
        judged.verdict.kind is VerdictKind.PROMOTED
        and run.state.directions[judged.direction].promoted is None
        and judged.baseline != run.best
    )


def _may_attempt(run: Run, direction: str, system: System, retry: int) -> None:
    allowed = run.deployment.budget.max_attempts_per_direction
    attempts = run.state.directions[direction].attempts
    if len(attempts) >= allowed:
        raise BudgetSpent(
            f"{allowed} attempts are spent",
            where=f"direction {direction}",
            fix="close the direction; another idea gets its own attempts",
        )
    if retry:
        before = attempts.get(attempt_key(direction, system.tree_hash, retry - 1))
        verdict = before.judged.verdict.kind if before and before.judged else None
        if verdict not in (VerdictKind.VOID, VerdictKind.UNDECIDED):
            raise Refused(
                f"retry {retry} of a tree whose verdict is {verdict}",
                where=f"direction {direction}",
                fix="only void and undecided attempts are timed again",
            )


def _within_budget(run: Run) -> None:
    reached = run.state.budget or budget_reached(run.state)
    if reached is not None:
        raise BudgetSpent(
            f"{reached.limit} is reached ({reached.spent:.4g} of {reached.allowed:.4g})",
            where="budget",
            fix="raise the limit and resume the run",
        )


def _time_answer(run: Run, direction: str, judged: AttemptJudged) -> TimeAnswer:
    verdict = judged.verdict
    allowed = run.deployment.budget.max_attempts_per_direction
    used = len(run.state.directions[direction].attempts)
    return TimeAnswer(
        verdict=verdict.kind,
        reason=verdict.reason,
        detail=verdict.detail,
        run_id=f"run-{judged.key[:12]}",
        tree_hash=judged.system.tree_hash,
        attempt=judged.attempt,
        attempts_left=max(allowed - used, 0),
        gain=None if verdict.gain is None else verdict.gain.overall,
        threshold=verdict.threshold,
        requests=0 if verdict.gain is None else verdict.gain.pairs,
        diverged_share=0.0 if verdict.gain is None else verdict.gain.diverged_share,
        mismatch_rate=None if judged.forcing is None else judged.forcing.mismatch_rate,
        activations=judged.activations,
    )

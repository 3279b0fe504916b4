"""`time` and `submit`: one timed attempt, counted once however often it is asked for."""

from specpilot.agents.base import Operation
from specpilot.controller.contracts import TimeAnswer, TimeArguments
from specpilot.controller.operations.base import Question, within_budget
from specpilot.controller.plausible import coarse
from specpilot.controller.timing import promote_if_earned, run_name, time_attempt
from specpilot.core.errors import BudgetSpent, Refused
from specpilot.core.record import content_hash
from specpilot.core.system import System
from specpilot.core.verdict import VerdictKind
from specpilot.loop.events import AttemptJudged
from specpilot.loop.run import Run


async def time_or_submit(question: Question, arguments: TimeArguments) -> TimeAnswer:
    """The verdict on the commit; a promoted one becomes the best where `submit` was asked.

    Raises:
        BudgetSpent: the direction's attempts or a limit of the run are spent.
        Refused: a retry of what was decided.
        RebaseConflict: the change does not apply to the current best.
        InfrastructureFailure: the baseline failed with and without the candidate beside it.
    """
    run, direction, system = question.run, question.direction, question.system
    submitted = question.operation is Operation.SUBMIT
    key = attempt_key(direction, system.tree_hash, arguments.retry)
    while True:
        found = run.state.directions[direction].attempts.get(key)
        judged = None if found is None else found.judged
        if judged is None:
            if found is None:
                _may_attempt(run, direction, system, arguments.retry)
            within_budget(run)
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


def _time_answer(run: Run, direction: str, judged: AttemptJudged) -> TimeAnswer:
    verdict = judged.verdict
    allowed = run.deployment.budget.max_attempts_per_direction
    used = len(run.state.directions[direction].attempts)
    return TimeAnswer(
        verdict=verdict.kind,
        reason=verdict.reason,
        detail=verdict.detail,
        run_id=run_name(judged.key),
        tree_hash=judged.system.tree_hash,
        attempt=judged.attempt,
        attempts_left=max(allowed - used, 0),
        gain=None if verdict.gain is None else verdict.gain.overall,
        threshold=verdict.threshold,
        requests=0 if verdict.gain is None else verdict.gain.pairs,
        diverged_share=0.0 if verdict.gain is None else verdict.gain.diverged_share,
        mismatch_rate=None if judged.forcing is None else judged.forcing.mismatch_rate,
        activations=coarse(judged.activations),
    )

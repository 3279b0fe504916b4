"""`check`: does the commit start, serve, and begin its outputs like the current best?"""

from collections.abc import Sequence

from specpilot.controller import evidence
from specpilot.controller.attribution import attributed
from specpilot.controller.contracts import CheckAnswer
from specpilot.controller.off_loop import off_loop
from specpilot.controller.operations.base import Question, within_budget
from specpilot.controller.outcomes import failed, require_answers
from specpilot.controller.plausible import check_declared, coarse, counters_of
from specpilot.controller.repeating import repeated
from specpilot.controller.servers import play_once, serving
from specpilot.controller.short_runs import few_requests
from specpilot.core.requests import Request, RequestOutcome
from specpilot.loop.run import Run

_CHECK_TOKENS = 64
_CHECKED_PREFIX = 4


async def check(question: Question) -> CheckAnswer:
    """Play a few requests and compare them with what the current best answered.

    Raises:
        BudgetSpent: a limit is reached.
        EngineFailure: the candidate failed.
    """
    run, system = question.run, question.system
    within_budget(run)
    requests = few_requests(run.development, _CHECK_TOKENS)
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, question.direction, "check"):
        known = evidence.known_outputs(run, run.best) or await repeated(
            run,
            devices,
            run.best,
            f"check of {question.direction}",
            lambda: _outputs(run, devices, requests),
        )
        checkout = await off_loop(run.systems.export, system)
        async with serving(run.arena(devices), checkout, requests) as server:
            outcomes = [await play_once(server, request) for request in requests]
            counters = await counters_of(server)
    check_declared(counters, checkout)
    return _compared(question, requests, known, outcomes, coarse(counters.activations))


def _compared(
    question: Question,
    requests: Sequence[Request],
    known: dict[str, tuple[int, ...]],
    outcomes: Sequence[RequestOutcome],
    activations: dict[str, int],
) -> CheckAnswer:
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
        tree_hash=question.system.tree_hash,
        requests=len(requests),
        identical=identical,
        activations=activations,
        detail=lost[0].error or "a request failed" if lost else detail,
    )


async def _outputs(
    run: Run, devices: tuple[str, ...], requests: Sequence[Request]
) -> dict[str, tuple[int, ...]]:
    with attributed(trusted=True):
        async with serving(
            run.arena(devices), await off_loop(run.systems.export, run.best), requests
        ) as server:
            played = [await play_once(server, item) for item in requests]
        require_answers(
            played, where="the current best", fix="see its server's log in the run folder"
        )
    return {outcome.request_id: outcome.output_token_ids for outcome in played}

"""`force`: token forcing of the commit's outputs on development requests."""

from collections.abc import Sequence

from specpilot.controller import evidence
from specpilot.controller.attribution import attributed
from specpilot.controller.contracts import ForceAnswer
from specpilot.controller.off_loop import off_loop
from specpilot.controller.operations.base import Question, within_budget
from specpilot.controller.outcomes import require_answers
from specpilot.controller.repeating import repeated
from specpilot.controller.servers import play_once, serving
from specpilot.core.requests import RequestOutcome
from specpilot.loop.facts import ForcingFacts
from specpilot.loop.run import Run


async def force(question: Question) -> ForceAnswer:
    """Play every development request, then score the outputs on a stock server.

    Raises:
        BudgetSpent: a limit is reached.
        EngineFailure: the candidate failed, or a request of it did.
    """
    run, system = question.run, question.system
    within_budget(run)
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, question.direction, "token forcing"):
        checkout = await off_loop(run.systems.export, system)
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
            f"token forcing of {question.direction}",
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

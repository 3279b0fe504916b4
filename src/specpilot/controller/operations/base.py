"""What every operation is asked with, and what stops new work."""

from dataclasses import dataclass

from specpilot.agents.base import Operation
from specpilot.core.errors import BudgetSpent
from specpilot.core.system import System
from specpilot.loop.budget import budget_reached
from specpilot.loop.run import Run


@dataclass(frozen=True, slots=True)
class Question:
    """One operation on one commit.

    Attributes:
        direction: whose socket it came through.
        system: what the direction's worktree holds, checked.
    """

    run: Run
    direction: str
    operation: Operation
    system: System


def within_budget(run: Run) -> None:
    """Start no measurement once a limit is reached.

    Raises:
        BudgetSpent: names the limit.
    """
    reached = run.state.budget or budget_reached(run.state)
    if reached is not None:
        raise BudgetSpent(
            f"{reached.limit} is reached ({reached.spent:.4g} of {reached.allowed:.4g})",
            where="budget",
            fix="raise the limit and resume the run",
        )

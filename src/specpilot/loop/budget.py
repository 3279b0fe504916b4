"""Limits of the deployment's budget against what the state says was spent."""

from specpilot.loop.events import BudgetReached
from specpilot.loop.state import RunState

SECONDS_PER_HOUR = 3600.0


def budget_reached(state: RunState) -> BudgetReached | None:
    """The first limit that is reached; None while work may start."""
    budget = state.limits
    if budget is None:
        return None
    hours = state.cuda_seconds / SECONDS_PER_HOUR
    if budget.max_gpu_hours is not None and hours >= budget.max_gpu_hours and _uses_gpu(state):
        return BudgetReached(limit="max_gpu_hours", spent=hours, allowed=budget.max_gpu_hours)
    spent = state.spent_usd()
    if budget.max_usd is not None and spent >= budget.max_usd and _costs_money(state):
        return BudgetReached(limit="max_usd", spent=spent, allowed=budget.max_usd)
    return None


def _uses_gpu(state: RunState) -> bool:
    if state.started is None:
        return False
    return any(device != "cpu" for device in state.started.deployment.platform.devices)


def _costs_money(state: RunState) -> bool:
    """Agents without a language model run on a budget of nothing."""
    return state.started is not None and state.started.deployment.agent.kind == "command"

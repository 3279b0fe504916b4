"""What is being measured right now, in words: which system, which pass, how far."""

from specpilot.controller.progress import Standing
from specpilot.loop.state import RunState


def spell_leases(state: RunState) -> str:
    """Who has which device for what; agents that work when none is taken."""
    taken = [f"{d}: {x.holder} ({x.purpose})" for d, x in sorted(state.leases.items())]
    if taken:
        return ", ".join(taken)
    working = [i.plan.id for i in state.directions.values() if i.agent_starts and i.closed is None]
    return f"no device in use, agents at work: {', '.join(working)}" if working else ""


def spell_standing(standing: Standing, state: RunState) -> str:
    """Such as `pass 1 of 2, request 7 of 15: stock plays`."""
    system = _name_of(standing, state)
    crowd = f", {standing.in_flight} at once" if standing.in_flight > 1 else ""
    if not standing.passes:
        return f"{system} {standing.doing}{crowd}"
    played = min(standing.played, standing.arms * standing.requests * standing.passes - 1)
    number, within = divmod(played, standing.arms * standing.requests)
    which = f"pass {number + 1} of {standing.passes}, " if standing.passes > 1 else ""
    request = within // standing.arms + 1
    return f"{which}request {request} of {standing.requests}: {system} {standing.doing}{crowd}"


def _name_of(standing: Standing, state: RunState) -> str:
    """By its tree: stock, the best, or the direction that made it."""
    tree = standing.tree_hash
    if standing.autoregressive:
        return "AR"
    if state.stock is not None and tree == state.stock.system.tree_hash:
        return "stock"
    if state.best is not None and tree == state.best.tree_hash:
        return "the best"
    for item in reversed(state.directions.values()):
        if any(attempt.started.system.tree_hash == tree for attempt in item.attempts.values()):
            return item.plan.id
    return f"tree {tree[:12]}"

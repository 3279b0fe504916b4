"""How long a run takes: before it starts from a rate, while it goes on from its first paired run.

Everything is counted in paired runs over the development requests, because nearly all of a run's
time is requests being played, and the first one, the noise band, gives the unit on this machine.
"""

from specpilot.core.deployment import Deployment
from specpilot.loop.state import Direction, RunState

SERVER_START_SECONDS = {"cpu": 4.0, "cuda": 60.0}
_ARMS = 2
NOISE, STOCK, CEILING = 1.0, 0.8, 0.8
"""Stock against stock; stock against AR with scoring; recordings, profiles and step times."""
EVIDENCE, ATTEMPT = 0.35, 1.2
"""Of a direction: headroom; each timed attempt, scoring included."""
INTEGRATION, TUNING = 1.2, 0.3
FINAL = 1.5
"""Of the sealed final, besides its paired runs: three arms on development requests, scoring."""
USUAL_ATTEMPTS = 1.0
"""Timed attempts of one direction when nothing is retried for noise."""


def device_kind(deployment: Deployment) -> str:
    """`cpu` or `cuda`."""
    return "cpu" if deployment.platform.devices[0] == "cpu" else "cuda"


def paired_run_seconds(deployment: Deployment, tokens_per_second: float) -> float:
    """One paired run; servers are fresh for each order and batch size.

    Args:
        tokens_per_second: of all requests in flight together, which is that of one alone: engines
            of every kind give requests their steps in turn.
    """
    workload = deployment.workload
    tokens = len(workload.benchmarks) * workload.development * workload.max_new_tokens
    side_by_side = min(2, len(deployment.platform.devices))
    levels = len(deployment.regime.concurrency)
    start = workload.passes * levels * SERVER_START_SECONDS[device_kind(deployment)]
    played = _ARMS * workload.passes * levels * tokens
    return played / (tokens_per_second * side_by_side) + start


def whole_run(deployment: Deployment, unit: float, attempts: float = USUAL_ATTEMPTS) -> float:
    """Seconds of all rounds.

    Args:
        unit: seconds of one paired run.
        attempts: timed attempts of one direction.
    """
    direction = EVIDENCE + ATTEMPT * attempts
    explored = deployment.agent.max_directions * direction + INTEGRATION + TUNING
    rounds = deployment.budget.max_rounds
    once = explored + _final(deployment) + CEILING
    return unit * (NOISE + STOCK + CEILING + rounds * once)


def remaining(deployment: Deployment, state: RunState, unit: float) -> float:
    """Seconds that are left of a run in this state, the work in progress counted whole."""
    current = state.round
    planned = current.planned if current is not None else {}
    left = 0.0
    if state.noise is None:
        left += NOISE
    if state.stock_facts is None:
        left += STOCK
    if current is None or current.ceiling is None:
        left += CEILING
    left += sum(_direction(item) for item in state.directions.values() if item.closed is None)
    if 1 not in planned:
        left += deployment.agent.max_directions * (EVIDENCE + ATTEMPT * USUAL_ATTEMPTS)
    left += (2 not in planned) * INTEGRATION + (3 not in planned) * TUNING
    explored = 3 in planned and all(item.closed is not None for item in state.directions.values())
    unchanged = current is not None and state.best == current.start
    if not (explored and unchanged) and (current is None or current.finished is None):
        judged = current is not None and current.final is not None
        left += CEILING + (0.0 if judged else _final(deployment))
    return unit * left


def measured_unit(state: RunState) -> float | None:
    """Seconds of this run's own first paired run; None before it was played."""
    if state.noise is None or state.started is None:
        return None
    return state.noise.device_seconds / min(2, len(state.started.deployment.platform.devices))


def spell_seconds(seconds: float) -> str:
    """For people, as exact as they need it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def _direction(item: Direction) -> float:
    judged = sum(attempt.judged is not None for attempt in item.attempts.values())
    evidence = 0.0 if item.attempts or item.answers else EVIDENCE
    return evidence + ATTEMPT * max(USUAL_ATTEMPTS - judged, 0.5)


def _final(deployment: Deployment) -> float:
    """Two paired runs of one pass each, and the best alone at the sealed length."""
    workload = deployment.workload
    sealed = workload.sealed / workload.development
    longer = workload.sealed_max_new_tokens / workload.max_new_tokens / (2 * _ARMS)
    paired = 1 + (longer if longer > 1 / (2 * _ARMS) else 0.0)
    return FINAL + sealed * paired * 2 / workload.passes

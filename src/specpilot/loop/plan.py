"""What to do next, as a pure function of the state. Nothing is remembered between two calls.

Every action ends with an event after which it is not planned again; an action that a crash cut off
is therefore planned again, and its own parts that were recorded are not repeated.
"""

from dataclasses import dataclass

from specpilot.core.verdict import Reason, VerdictKind
from specpilot.loop.facts import DirectionKind, Outcome
from specpilot.loop.state import Direction, Round, RunState


@dataclass(frozen=True, slots=True)
class CommitStock:
    """Make the run's repository and its first commit."""


@dataclass(frozen=True, slots=True)
class SplitWorkload:
    """Divide the requests into development and sealed."""


@dataclass(frozen=True, slots=True)
class MeasureNoise:
    """Time stock against stock."""


@dataclass(frozen=True, slots=True)
class CharacteriseStock:
    """Time stock against AR, and force its outputs."""


@dataclass(frozen=True, slots=True)
class StartPhase:
    """Announce a phase."""

    round: int
    phase: int


@dataclass(frozen=True, slots=True)
class MeasureCeiling:
    """Record, profile, replay."""

    round: int


@dataclass(frozen=True, slots=True)
class PlanDirections:
    """Ask the planner (phases 1 and 3), or collect what integration may stack (phase 2)."""

    round: int
    phase: int


@dataclass(frozen=True, slots=True)
class RunDirection:
    """Run an agent on one idea to its end."""

    direction: str


@dataclass(frozen=True, slots=True)
class Integrate:
    """Stack positive pieces on the best, one at a time."""

    direction: str


@dataclass(frozen=True, slots=True)
class CompletePromotion:
    """Write the promotion that a crash kept from following its verdict."""

    key: str


@dataclass(frozen=True, slots=True)
class JudgeFinal:
    """Best against stock on sealed requests."""

    round: int


@dataclass(frozen=True, slots=True)
class AdmitMemory:
    """Turn one promoted direction into a memory entry."""

    round: int
    direction: str


@dataclass(frozen=True, slots=True)
class FinishRound:
    """Settle what the next round starts from."""

    round: int


@dataclass(frozen=True, slots=True)
class FinishRun:
    """Write the last event."""

    outcome: Outcome


Action = (
    CommitStock
    | SplitWorkload
    | MeasureNoise
    | CharacteriseStock
    | StartPhase
    | MeasureCeiling
    | PlanDirections
    | RunDirection
    | Integrate
    | CompletePromotion
    | JudgeFinal
    | AdmitMemory
    | FinishRound
    | FinishRun
)


def next_actions(state: RunState) -> tuple[Action, ...]:
    """Actions that may run now, at once; empty when the run is over.

    A spent budget ends the run where it stands; resuming with a larger one goes on from there.
    """
    if state.finished is not None:
        return ()
    if (unfinished := state.unfinished_promotion()) is not None:
        return (CompletePromotion(unfinished.key),)
    current = state.round
    if current is None:
        return _before_rounds(state)
    if current.finished is not None:
        return _between_rounds(state)
    return _within_round(state, current)


def promoted_in(state: RunState, number: int) -> tuple[Direction, ...]:
    """Directions of a round that became the best, in the order planned."""
    return tuple(
        item
        for item in state.directions.values()
        if item.round == number and item.promoted is not None
    )


def confirmed(state: RunState) -> bool:
    """Whether some round's sealed final accepted its system."""
    return any(_accepted(item) for item in state.rounds)


def _before_rounds(state: RunState) -> tuple[Action, ...]:
    if state.stock is None:
        return (CommitStock(),)
    if state.split is None:
        return (SplitWorkload(),)
    return (StartPhase(1, 0),)


def _within_round(state: RunState, current: Round) -> tuple[Action, ...]:
    if state.noise is None:
        return (MeasureNoise(),)
    if state.stock_facts is None:
        return (CharacteriseStock(),)
    if current.ceiling is None:
        return (MeasureCeiling(current.number),)
    for phase in (1, 2, 3):
        actions = _phase(state, current, phase)
        if actions and state.budget is not None:
            return (FinishRun(Outcome.BUDGET_SPENT),)
        if actions:
            return actions
    return _close_round(state, current)


def _phase(state: RunState, current: Round, phase: int) -> tuple[Action, ...]:
    if current.phase < phase:
        return (StartPhase(current.number, phase),)
    if phase not in current.planned:
        return (PlanDirections(current.number, phase),)
    waiting = [
        state.directions[item]
        for item in current.planned[phase]
        if state.directions[item].closed is None
    ]
    return tuple(
        Integrate(item.plan.id)
        if item.plan.kind is DirectionKind.INTEGRATION
        else RunDirection(item.plan.id)
        for item in waiting
    )


def _close_round(state: RunState, current: Round) -> tuple[Action, ...]:
    changed = state.best != current.start
    # A phase that has nothing to confirm is not announced either.
    if changed and current.phase < 4:
        return (StartPhase(current.number, 4),)
    if changed and current.final is None:
        if state.budget is not None:
            return (FinishRun(Outcome.BUDGET_SPENT),)
        return (JudgeFinal(current.number),)
    if _accepted(current):
        for item in promoted_in(state, current.number):
            if item.plan.id not in current.memory:
                return (AdmitMemory(current.number, item.plan.id),)
    return (FinishRound(current.number),)


def _between_rounds(state: RunState) -> tuple[Action, ...]:
    number = len(state.rounds)
    if state.limits is None:
        raise ValueError("a controller starts before any round")
    more = number < state.limits.max_rounds
    if more and state.budget is None:
        return (StartPhase(number + 1, 0),)
    return (FinishRun(_outcome(state)),)


def _outcome(state: RunState) -> Outcome:
    if confirmed(state):
        return Outcome.PROMOTED
    finals = [item.final for item in state.rounds if item.final is not None]
    if state.budget is not None:
        return Outcome.BUDGET_SPENT
    if finals and finals[-1].verdict.reason is Reason.ISOLATION_TOO_WEAK:
        return Outcome.REFUSED
    if finals and finals[-1].verdict.kind is VerdictKind.VOID:
        return Outcome.VOID
    if all_void(state):
        return Outcome.VOID
    return Outcome.NOTHING_PROMOTED


def all_void(state: RunState) -> bool:
    """Whether attempts were timed and none of them counts: the run measured its machine."""
    judged = [item.judged for item in state.attempts() if item.judged is not None]
    return bool(judged) and all(item.verdict.kind is VerdictKind.VOID for item in judged)


def _accepted(item: Round) -> bool:
    return item.final is not None and item.final.verdict.kind is VerdictKind.PROMOTED

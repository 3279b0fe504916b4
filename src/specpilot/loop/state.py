"""The state of a run as a pure fold of its events: `fold(events)`, one `apply` per event.

No clock, no file, no device: the same events give the same state on every machine, so that a
killed run, a resumed run and a reader of the journal agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from specpilot.core.deployment import Budget
from specpilot.core.system import System
from specpilot.core.verdict import Verdict, VerdictKind
from specpilot.loop.events import (
    AgentStarted,
    AttemptJudged,
    AttemptStarted,
    BudgetReached,
    CeilingMeasured,
    ControllerStarted,
    CostRecorded,
    DirectionClosed,
    DirectionOpened,
    DirectionsPlanned,
    Event,
    FinalJudged,
    LeaseReleased,
    LeaseTaken,
    MemoryJudged,
    NoiseMeasured,
    OperationAnswered,
    PhaseStarted,
    Promoted,
    RoundFinished,
    RunFinished,
    RunStarted,
    StockCharacterised,
    StockCommitted,
    WorkloadSplit,
)
from specpilot.loop.facts import DirectionPlan


@dataclass(frozen=True, slots=True)
class Attempt:
    """One timed attempt; `judged` is None while it runs or after a crash in the middle of it."""

    started: AttemptStarted
    judged: AttemptJudged | None = None


@dataclass(frozen=True, slots=True)
class Direction:
    """One idea from its plan to its end."""

    plan: DirectionPlan
    round: int
    base: str | None = None
    agent_starts: int = 0
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """By key; one key is one attempt, however often it had to be run."""
    answers: dict[str, OperationAnswered] = field(default_factory=dict)
    """By key."""
    usd: dict[int, CostRecorded] = field(default_factory=dict)
    """By agent start."""
    promoted: Promoted | None = None
    closed: DirectionClosed | None = None

    def last_verdict(self) -> Verdict | None:
        """Of the latest attempt that was judged."""
        judged = [item.judged for item in self.attempts.values() if item.judged is not None]
        return judged[-1].verdict if judged else None


@dataclass(frozen=True, slots=True)
class Round:
    """One round from ceiling to sealed final."""

    number: int
    start: System
    """What the round began with; a failed final falls back to it."""
    phase: int = 0
    ceiling: CeilingMeasured | None = None
    planned: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Phase -> direction ids."""
    final: FinalJudged | None = None
    memory: dict[str, MemoryJudged] = field(default_factory=dict)
    """By direction."""
    finished: RoundFinished | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything a controller needs to know to go on."""

    started: RunStarted | None = None
    stock: StockCommitted | None = None
    split: WorkloadSplit | None = None
    noise: NoiseMeasured | None = None
    stock_facts: StockCharacterised | None = None
    rounds: tuple[Round, ...] = ()
    directions: dict[str, Direction] = field(default_factory=dict)
    best: System | None = None
    leases: dict[str, LeaseTaken] = field(default_factory=dict)
    cuda_seconds: float = 0.0
    """Lease time of CUDA devices: what `max_gpu_hours` limits."""
    limits: Budget | None = None
    """The budget in force since the last start."""
    budget: BudgetReached | None = None
    starts: int = 0
    finished: RunFinished | None = None

    @property
    def round(self) -> Round | None:
        """The latest round."""
        return self.rounds[-1] if self.rounds else None

    def spent_usd(self) -> float:
        """Money over all agents; what a program did not state was recorded at its cap."""
        return sum(cost.usd for item in self.directions.values() for cost in item.usd.values())

    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts of all directions."""
        return tuple(a for item in self.directions.values() for a in item.attempts.values())

    def unfinished_promotion(self) -> AttemptJudged | None:
        """A submitted attempt that was judged worth promotion, and a crash came in between."""
        waiting = (item for item in self.directions.values() if not (item.promoted or item.closed))
        for item in waiting:
            for attempt in item.attempts.values():
                judged = attempt.judged
                if (
                    judged is not None
                    and judged.submitted
                    and judged.verdict.kind is VerdictKind.PROMOTED
                    and judged.baseline == self.best
                ):
                    return judged
        return None


def fold(events: Iterable[Event]) -> RunState:
    """The state after all events."""
    state = RunState()
    for event in events:
        state = apply(state, event)
    return state


def apply(state: RunState, event: Event) -> RunState:
    """The state after one more event. Events that only inform a reader change nothing."""
    match event:
        case RunStarted():
            return replace(state, started=event)
        case ControllerStarted():
            # A limit that was reached may have been raised; the plan looks again.
            return replace(
                state, starts=state.starts + 1, limits=event.budget, budget=None, finished=None
            )
        case StockCommitted():
            return replace(state, stock=event, best=event.system)
        case WorkloadSplit():
            return replace(state, split=event)
        case NoiseMeasured():
            return replace(state, noise=event)
        case StockCharacterised():
            return replace(state, stock_facts=event)
        case BudgetReached():
            return replace(state, budget=event)
        case RunFinished():
            return replace(state, finished=event)
        case LeaseTaken():
            return replace(state, leases={**state.leases, event.device: event})
        case LeaseReleased():
            return _release(state, event)
        case _:
            return _apply_to_direction(_apply_to_round(state, event), event)


def _release(state: RunState, event: LeaseReleased) -> RunState:
    leases = {key: value for key, value in state.leases.items() if key != event.device}
    spent = event.seconds if event.device.startswith("cuda") else 0.0
    return replace(state, leases=leases, cuda_seconds=state.cuda_seconds + spent)


def _apply_to_round(state: RunState, event: Event) -> RunState:
    if isinstance(event, PhaseStarted) and (
        state.round is None or event.round > state.round.number
    ):
        if state.best is None:
            raise ValueError("a round cannot start before stock is committed")
        opened = Round(event.round, start=state.best)
        return replace(state, rounds=(*state.rounds, opened))
    current = state.round
    if current is None:
        return state
    match event:
        case PhaseStarted():
            changed = replace(current, phase=event.phase)
        case CeilingMeasured():
            changed = replace(current, ceiling=event)
        case DirectionsPlanned():
            ids = tuple(plan.id for plan in event.plans)
            changed = replace(current, planned={**current.planned, event.phase: ids})
        case FinalJudged():
            changed = replace(current, final=event)
        case MemoryJudged():
            changed = replace(current, memory={**current.memory, event.direction: event})
        case RoundFinished():
            changed = replace(current, finished=event)
            state = replace(state, best=event.best)
        case _:
            return state
    return replace(state, rounds=(*state.rounds[:-1], changed))


def _apply_to_direction(state: RunState, event: Event) -> RunState:
    if isinstance(event, DirectionsPlanned):
        added = {plan.id: Direction(plan, event.round) for plan in event.plans}
        return replace(state, directions={**state.directions, **added})
    match event:
        case DirectionOpened():
            changed = replace(state.directions[event.direction], base=event.base)
        case AgentStarted():
            changed = replace(state.directions[event.direction], agent_starts=event.start)
        case CostRecorded():
            item = state.directions[event.direction]
            changed = replace(item, usd={**item.usd, event.start: event})
        case OperationAnswered():
            item = state.directions[event.direction]
            changed = replace(item, answers={**item.answers, event.key: event})
        case AttemptStarted():
            item = state.directions[event.direction]
            changed = replace(item, attempts={**item.attempts, event.key: Attempt(event)})
        case AttemptJudged():
            item = state.directions[event.direction]
            attempt = replace(item.attempts[event.key], judged=event)
            changed = replace(item, attempts={**item.attempts, event.key: attempt})
        case Promoted():
            changed = replace(state.directions[event.direction], promoted=event)
            state = replace(state, best=event.system)
        case DirectionClosed():
            changed = replace(state.directions[event.direction], closed=event)
        case _:
            return state
    return replace(state, directions={**state.directions, event.direction: changed})

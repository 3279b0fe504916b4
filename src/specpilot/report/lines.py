"""One event as one plain line for people; events that only machines need give none."""

from collections.abc import Iterable

from specpilot.controller.noise import noise_warning, spell_noise
from specpilot.core.verdict import Verdict, VerdictKind
from specpilot.loop.events import (
    AgentEnded,
    AttemptJudged,
    AttemptStarted,
    BudgetReached,
    CeilingMeasured,
    ControllerStarted,
    DirectionClosed,
    DirectionsPlanned,
    Event,
    FinalJudged,
    MemoryJudged,
    NoiseMeasured,
    Noticed,
    OperationAnswered,
    PhaseStarted,
    Promoted,
    RoundFinished,
    RunFinished,
    StockCharacterised,
    StockCommitted,
    WorkloadSplit,
)
from specpilot.loop.facts import Outcome
from specpilot.loop.state import RunState, apply

SIGNS = {
    VerdictKind.PROMOTED: "+",
    VerdictKind.NOT_PROMOTED: "-",
    VerdictKind.UNDECIDED: "?",
    VerdictKind.VOID: "!",
}
"""Marks that do not need colour."""

PHASES = (
    "phase 0: where speed is lost",
    "phase 1: exploration",
    "phase 2: integration",
    "phase 3: tuning",
    "phase 4: sealed final",
)


OUTCOMES = {
    Outcome.PROMOTED: "promoted",
    Outcome.NOTHING_PROMOTED: "nothing promoted",
    Outcome.VOID: "void",
    Outcome.BUDGET_SPENT: "budget spent",
    Outcome.REFUSED: "refused",
    Outcome.STOPPED: "stopped",
}


def describe(event: Event, state: RunState) -> str | None:
    """The event in one line; None when it is not worth one.

    Args:
        state: of the run before the event: the same event may mean different things.
    """
    return _of_run(event, state) or _of_direction(event, state)


def describe_all(events: Iterable[Event]) -> list[str]:
    """The lines of a whole journal."""
    state, found = RunState(), []
    for event in events:
        text = describe(event, state)
        state = apply(state, event)
        if text is not None:
            found.append(text)
    return found


def spell_verdict(verdict: Verdict) -> str:
    """Sign, kind, reason and interval."""
    text = f"{SIGNS[verdict.kind]} {verdict.kind} ({verdict.reason})"
    if verdict.gain is not None:
        found = verdict.gain.overall
        text += f" {found.point:.3f}x [{found.low:.3f}, {found.high:.3f}]"
    return text


def _of_run(event: Event, state: RunState) -> str | None:
    match event:
        case ControllerStarted():
            return "resumed" if event.resumed else "started"
        case StockCommitted():
            return f"stock is tree {event.system.tree_hash[:12]}"
        case WorkloadSplit():
            shown, sealed = sum(event.development.values()), sum(event.sealed.values())
            return f"{shown} development requests, {sealed} sealed"
        case PhaseStarted():
            return f"round {event.round}, {PHASES[event.phase]}"
        case NoiseMeasured():
            return noise_warning(event.noise) or spell_noise(event.noise)
        case StockCharacterised():
            ar = event.autoregressive.overall_tokens_per_second
            stock = event.stock.overall_tokens_per_second
            return (
                f"AR {ar:.1f} tokens/s, stock {stock:.1f} tokens/s ({stock / ar:.2f}x), "
                f"delta {event.delta_nats:g}"
            )
        case CeilingMeasured():
            c = event.ceiling
            return (
                f"ceiling {c.ceiling:.2f}x = tau {c.tau_factor:.2f} · kernel "
                f"{c.kernel_factor:.2f} · overhead {c.overhead_factor:.2f}; largest: {c.largest}"
            )
        case FinalJudged():
            return f"sealed final: {spell_verdict(event.verdict)}"
        case BudgetReached():
            return f"budget: {event.limit} is spent ({event.spent:g} of {event.allowed:g})"
        case Noticed():
            return f"note: {event.message}"
        case RoundFinished():
            return _end_of_round(event, state)
        case RunFinished():
            return f"finished: {OUTCOMES[event.outcome]}; {event.detail}"
        case _:
            return None


def _end_of_round(event: RoundFinished, state: RunState) -> str:
    current = state.round
    if current is None or current.final is None:
        return f"round {event.round} ends: nothing to confirm, so no sealed final is played"
    if event.best != state.best:
        return f"round {event.round} ends: falls back to tree {event.best.tree_hash[:12]}"
    return f"round {event.round} ends with tree {event.best.tree_hash[:12]}"


def _directions(event: DirectionsPlanned, state: RunState) -> str:
    names = ", ".join(plan.id for plan in event.plans)
    if names:
        return f"directions: {names}"
    changed = state.round is not None and state.best != state.round.start
    if event.phase == 2:
        return "no piece is left to stack"
    if event.phase == 3:
        return (
            "no option is left to tune" if changed else "nothing was promoted, so nothing to tune"
        )
    return "the planner sees no direction worth trying"


def _of_direction(event: Event, state: RunState) -> str | None:
    match event:
        case DirectionsPlanned():
            return _directions(event, state)
        case OperationAnswered() if event.operation == "headroom" and event.ok:
            found = event.answer["result"]
            return f"{event.direction}: headroom {found['headroom']:+.1%} by {found['method']}"
        case OperationAnswered() if not event.ok:
            return f"{event.direction}: {event.operation} refused: {event.answer['error']['what']}"
        case AttemptStarted():
            return f"{event.direction}: attempt {event.attempt} is timed"
        case AttemptJudged():
            return f"{event.direction}: {spell_verdict(event.verdict)}"
        case Promoted():
            return f"{event.direction}: is the new best, tree {event.system.tree_hash[:12]}"
        case AgentEnded() if event.error is not None:
            return f"{event.direction}: agent ended: {event.error}"
        case DirectionClosed():
            return f"{event.direction}: closed ({event.reason}): {event.detail}"
        case MemoryJudged():
            word = "kept as" if event.admitted else "not kept as"
            return f"{event.direction}: {word} memory entry {event.entry}: {event.detail}"
        case _:
            return None

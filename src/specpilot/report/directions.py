"""One direction of the report: its evidence, its attempts and how it ended."""

from typing import Any

from specpilot.core.system import OptionValue, System
from specpilot.core.verdict import VerdictKind
from specpilot.loop.events import AttemptJudged
from specpilot.loop.state import Direction

PLANNED = "planned"
SOURCES = {PLANNED: "planned", "replay": "by replay", "microbenchmark": "by short run"}
"""Where a headroom comes from, for people."""


def direction_facts(item: Direction) -> dict[str, Any]:
    """Every verdict with its numbers; `verdict` is `closed` where nothing had to be timed."""
    judged = [attempt.judged for attempt in item.attempts.values() if attempt.judged is not None]
    closed = item.closed
    headroom, source = headroom_of(item)
    return {
        "id": item.plan.id,
        "name": item.plan.name,
        "kind": str(item.plan.kind),
        "mechanism": item.plan.mechanism,
        "factor": str(item.plan.factor),
        "round": item.round,
        "memory_entry": item.plan.memory_entry,
        "expected_headroom": item.plan.expected_headroom,
        "headroom": headroom,
        "headroom_by": source,
        "evidence": [
            answer.answer["result"]
            for answer in item.answers.values()
            if answer.operation == "headroom" and answer.ok
        ],
        "verdict": _verdict(item),
        "reason": str(closed.reason) if closed is not None else None,
        "detail": closed.detail if closed is not None else None,
        "attempts": [_attempt(event) for event in judged],
        "usd": sum(cost.usd for cost in item.usd.values()),
    }


def headroom_of(item: Direction) -> tuple[float | None, str | None]:
    """The best headroom as a gain minus 1, and what it is: a method of evidence, or `planned`."""
    answers = [
        answer.answer["result"]
        for answer in item.answers.values()
        if answer.operation == "headroom" and answer.ok
    ]
    if answers:
        best = max(answers, key=lambda answer: float(answer["headroom"]))
        return float(best["headroom"]), str(best["method"])
    planned = item.plan.expected_headroom
    return planned, None if planned is None else PLANNED


def spell_headroom(headroom: float | None, source: str | None) -> str:
    """With where it comes from: an expectation must not look like a measurement."""
    if headroom is None:
        return "-"
    return f"{headroom:+.1%} {SOURCES.get(source or '', source)}"


def _verdict(item: Direction) -> str:
    if item.promoted is not None:
        return "promoted"
    last = item.last_verdict()
    # A gain that was timed and not submitted promotes nothing.
    if last is not None and last.kind is not VerdictKind.PROMOTED:
        return str(last.kind)
    return "open" if item.closed is None else "closed"


def _attempt(event: AttemptJudged) -> dict[str, Any]:
    verdict = event.verdict
    return {
        "attempt": event.attempt,
        "verdict": str(verdict.kind),
        "reason": str(verdict.reason),
        "detail": verdict.detail,
        "gain": verdict.gain.overall.to_json() if verdict.gain is not None else None,
        "threshold": verdict.threshold,
        "options": changed_options(event.baseline, event.system),
        "system": event.system.tree_hash,
        "baseline": event.baseline.tree_hash,
        "forcing_accepted": event.forcing.accepted if event.forcing is not None else None,
        "mismatch_rate": event.forcing.mismatch_rate if event.forcing is not None else None,
        "device_seconds": event.device_seconds,
        "record": event.record.path if event.record is not None else None,
    }


def changed_options(before: System, after: System) -> dict[str, OptionValue]:
    """Options of a system whose value differs from an earlier one's."""
    return {k: v for k, v in after.options.items() if before.options.get(k) != v}

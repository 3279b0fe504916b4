"""The report as plain JSON: a pure fold of a journal's lines.

Numbers keep full precision. What a run did not measure is null, never a guess.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from specpilot.controller.journal import JournalLine
from specpilot.core.record import content_hash
from specpilot.core.verdict import Gain, VerdictKind
from specpilot.loop.events import CeilingMeasured, FinalJudged, MemoryJudged, Noticed
from specpilot.loop.facts import CeilingFacts, ForcingFacts, SpeedFacts
from specpilot.loop.state import RunState, fold
from specpilot.report.directions import changed_options, direction_facts

Json = dict[str, Any]


def build_report(lines: Sequence[JournalLine]) -> Json:
    """Everything that `report.json` holds.

    Args:
        lines: a journal's lines, checked; may end anywhere.
    """
    events = [line.event() for line in lines]
    state = fold(events)
    final = _decisive_final(state)
    finished = state.finished
    return {
        "name": state.started.deployment.name if state.started else None,
        "version": state.started.version if state.started else None,
        "outcome": str(finished.outcome) if finished else None,
        "detail": finished.detail if finished else None,
        "started_at": lines[0].time if lines else None,
        "seconds": _seconds(lines),
        "systems": _systems(state, final),
        **_gains(state, final),
        "noise": state.noise.noise if state.noise else None,
        "ceiling": _ceilings(state),
        "directions": [direction_facts(item) for item in state.directions.values()],
        "rounds": [_round(state, number) for number in range(len(state.rounds))],
        "forcing": _forcing(final),
        "stock_forcing": (
            _forcing_facts(state.stock_facts.forcing) if state.stock_facts is not None else None
        ),
        "memory": [_memory(event) for event in events if isinstance(event, MemoryJudged)],
        "attempts": len(state.attempts()),
        "spent": {"cuda_seconds": state.cuda_seconds, "usd": state.spent_usd()},
        "starts": state.starts,
        "notices": [event.message for event in events if isinstance(event, Noticed)],
        "isolation": str(state.started.isolation) if state.started else None,
        "deployment": state.started.deployment.to_json() if state.started else None,
        "hashes": _hashes(state, lines),
    }


def _seconds(lines: Sequence[JournalLine]) -> float | None:
    """Time in which a controller was at work; pauses before a resumption do not count."""
    total = 0.0
    previous: datetime | None = None
    for line in lines:
        now = datetime.fromisoformat(line.time)
        if previous is not None and line.kind != "controller_started":
            total += (now - previous).total_seconds()
        previous = now
    return total if lines else None


def _decisive_final(state: RunState) -> FinalJudged | None:
    """The last that confirmed something, since its system stays the best; else the last."""
    finals = [item.final for item in state.rounds if item.final is not None]
    confirmed = [item for item in finals if item.verdict.kind is VerdictKind.PROMOTED]
    decisive = confirmed or finals
    return decisive[-1] if decisive else None


def _systems(state: RunState, final: FinalJudged | None) -> Json:
    """Rates of one interleaved run where there is one; AR and stock from phase 0 otherwise."""
    speeds: dict[str, SpeedFacts | None] = {"ar": None, "stock": None, "best": None}
    if state.stock_facts is not None:
        speeds |= {"ar": state.stock_facts.autoregressive, "stock": state.stock_facts.stock}
    if final is not None and final.speeds:
        speeds |= {name: final.speeds.get(name) for name in speeds}
    if state.stock is not None and state.best == state.stock.system:
        speeds["best"] = speeds["stock"]
    trees = {
        "ar": state.stock.system.tree_hash if state.stock else None,
        "stock": state.stock.system.tree_hash if state.stock else None,
        "best": state.best.tree_hash if state.best else None,
    }
    changed = changed_options(state.stock.system, state.best) if state.stock and state.best else {}
    return {
        name: {
            "tree_hash": trees[name],
            "options": changed if name == "best" else {},
            "tokens_per_second": {
                "overall": speed.overall_tokens_per_second if speed else None,
                "per_benchmark": dict(speed.tokens_per_second) if speed else {},
            },
            "tau": {
                "overall": speed.tau if speed else None,
                "per_benchmark": dict(speed.tau_per_benchmark) if speed else {},
            },
        }
        for name, speed in speeds.items()
    }


def _gains(state: RunState, final: FinalJudged | None) -> Json:
    gain = final.gain if final is not None else None
    facts = state.stock_facts
    speeds = {} if final is None else dict(final.speeds)
    if not speeds and facts is not None:
        speeds = {"ar": facts.autoregressive, "stock": facts.stock}
    unchanged = state.stock is not None and state.best == state.stock.system
    if unchanged and "stock" in speeds:
        speeds["best"] = speeds["stock"]
    ar_over = {
        name: {key: rate / speeds["ar"].tokens_per_second[key]
               for key, rate in speed.tokens_per_second.items()}
        for name, speed in speeds.items() if name != "ar"
    }  # fmt: skip
    stock_over = final.stock_speedup_over_ar if final is not None else None
    if stock_over is None and facts is not None:
        stock_over = (
            facts.stock.overall_tokens_per_second / facts.autoregressive.overall_tokens_per_second
        )
    best_over = final.speedup_over_ar if final is not None else None
    if unchanged:
        # Nothing stayed promoted: what the run ends with is stock.
        best_over = stock_over
    return {
        "gain_over_stock": _gain(gain),
        "confirmed": final is not None and final.verdict.kind is VerdictKind.PROMOTED,
        "speedup_over_ar": best_over,
        "stock_speedup_over_ar": stock_over,
        "speedup_over_ar_per_benchmark": ar_over,
    }


def _gain(gain: Gain | None) -> Json:
    if gain is None:
        return {"point": None, "low": None, "high": None, "per_benchmark": {}, "pairs": None}
    return {
        **gain.overall.to_json(),
        "per_benchmark": {name: item.to_json() for name, item in gain.per_benchmark.items()},
        "pairs": gain.pairs,
        "run_means": list(gain.run_means),
        "diverged_share": gain.diverged_share,
    }


def _ceilings(state: RunState) -> Json:
    """Before: what the first round began with. After: the last that was measured since."""
    before = state.rounds[0].ceiling if state.rounds else None
    after = [
        item.finished.ceiling_after
        for item in state.rounds
        if item.finished is not None and item.finished.ceiling_after is not None
    ]
    return {
        "before": _ceiling(before.ceiling) if isinstance(before, CeilingMeasured) else None,
        "after": _ceiling(after[-1]) if after else None,
    }


def _ceiling(facts: CeilingFacts) -> Json:
    table = facts.to_json()
    table["factors"] = {
        "tau": table.pop("tau_factor"),
        "kernel": table.pop("kernel_factor"),
        "overhead": table.pop("overhead_factor"),
    }
    return table


def _round(state: RunState, index: int) -> Json:
    item = state.rounds[index]
    return {
        "number": item.number,
        "start": item.start.tree_hash,
        "best": item.finished.best.tree_hash if item.finished else None,
        "final": (
            None
            if item.final is None
            else {
                **item.final.verdict.to_json(),
                "record": item.final.record.path if item.final.record else None,
            }
        ),
    }


def _forcing(final: FinalJudged | None) -> Json | None:
    if final is None or final.forcing is None:
        return None
    return {
        **_forcing_facts(final.forcing),
        "longer_outputs": _forcing_facts(final.long_forcing) if final.long_forcing else None,
    }


def _forcing_facts(facts: ForcingFacts) -> Json:
    return {
        "verdict": "accepted" if facts.accepted else "rejected",
        "tokens": facts.tokens,
        "mismatch_rate": facts.mismatch_rate,
        "stock_mismatch_rate": facts.stock_mismatch_rate,
        "delta": facts.delta_nats,
        "large_margin_events": facts.large_margin_events,
        "unexplained": facts.unexplained,
        "detail": facts.detail,
    }


def _memory(event: MemoryJudged) -> Json:
    table = event.to_json()
    table.pop("kind")
    return table


def _hashes(state: RunState, lines: Sequence[JournalLine]) -> Json:
    started = state.started
    return {
        "deployment": started.deployment_hash if started else None,
        **(started.identity.to_json() if started else {}),
        "stock_tree": state.stock.system.tree_hash if state.stock else None,
        "best_tree": state.best.tree_hash if state.best else None,
        "development_set": state.split.development_hash if state.split else None,
        "sealed_set": state.split.sealed_hash if state.split else None,
        "journal": lines[-1].hash if lines else content_hash([]),
    }

"""Prometheus text exposition of the engine's counters and the queue."""

from collections.abc import Iterable

from specengine.decoding.counters import EngineCounters
from specengine.server.scheduler import Scheduler

Sample = tuple[dict[str, str], float]


def prometheus_text(counters: EngineCounters, scheduler: Scheduler) -> str:
    """All metrics; counters restart at a flush, as Prometheus expects of a restart."""
    labelled = {
        "activations": ("mechanism", counters.activations),
        "seconds": ("part", counters.seconds),
        "events": ("kind", counters.events),
    }
    parts = [
        _metric(f"{name}_total", "counter", text, [({}, value)])
        for name, text, value in (
            ("requests", "Requests whose prefill ran.", counters.requests),
            ("prompt_tokens", "Tokens of their prompts.", counters.prompt_tokens),
            ("steps", "Verify passes.", counters.steps),
            ("emitted_tokens", "Tokens emitted by steps.", counters.emitted_tokens),
            ("drafted_tokens", "Drafted tokens verified.", counters.drafted_tokens),
            ("verified_rows", "Rows of all verify passes.", counters.verified_rows),
            ("rejected_requests", "Requests refused by a full queue.", scheduler.rejected),
        )
    ]
    for name, text in (
        ("activations", "Runs of each mechanism."),
        ("seconds", "Host time by part of a step."),
        ("events", "Warnings."),
    ):
        label, values = labelled[name]
        samples = [({label: key}, value) for key, value in values.items()]
        parts.append(_metric(f"{name}_total", "counter", text, samples))
    parts.append(_metric("running_requests", "gauge", "Slots in use.", [({}, scheduler.running)]))
    parts.append(_metric("waiting_requests", "gauge", "Queue length.", [({}, scheduler.waiting)]))
    return "".join(parts)


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> str:
    name = f"specengine_{name}"
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{label}"' for key, label in labels.items())
        lines.append(f"{name}{{{inside}}} {value}" if inside else f"{name} {value}")
    return "\n".join(lines) + "\n"

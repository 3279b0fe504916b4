"""Requests that came back implausibly fast: the mark of an answer that was kept.

Each pass has servers of its own, so nothing should survive from one to the next. This is the second
line: what leaks between processes all the same, such as which pages of a model file are in memory,
shows as requests that are answered much faster the second time.
"""

import math
from collections import defaultdict

from specpilot.core.measurement import Measurement, PairedRun

REPLAY_FACTOR = 3.0
"""A fresh server that is this many times as fast as its predecessor, while the other arm is not,
did not compute the same."""
REPLAY_SHARE = 0.1
"""Share of requests that a hiccup of the machine in the first pass may touch; one always may."""


def replayed(played: PairedRun) -> int:
    """Requests whose candidate gained `REPLAY_FACTOR` on the baseline from a pass to a later one.

    Every request was answered in both arms.
    """
    baseline, candidate = _logs(played.baseline), _logs(played.candidate)
    found = 0
    for key, rates in candidate.items():
        gains = [new - old for new, old in zip(rates, baseline[key], strict=True)]
        found += max(gains) - gains[0] > math.log(REPLAY_FACTOR)
    return found


def too_many(found: int, requests: int) -> bool:
    """Whether more requests were replayed than accidents explain."""
    return found > max(1, REPLAY_SHARE * requests)


def _logs(arm: Measurement) -> dict[tuple[str, str], list[float]]:
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for outcomes in arm.passes:
        for outcome in outcomes:
            rate = math.log(outcome.tokens_per_second)
            logs[outcome.benchmark, outcome.request_id].append(rate)
    return logs

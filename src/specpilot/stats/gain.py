"""The gain of a paired run: what promotion, the noise band and the sealed final are decided on.

Per request, the ratio of output rates (means of logs over each arm's passes); per benchmark, their
geometric mean; overall, the equal-weight geometric mean over benchmarks. All in logs and full
precision; rounding is for display.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from specpilot.core.measurement import Measurement, PairedRun
from specpilot.core.requests import RequestOutcome
from specpilot.core.verdict import Gain
from specpilot.stats.interval import grouped_interval


def paired_gain(played: PairedRun) -> Gain:
    """Gain of the candidate over the baseline; no request failed in either arm.

    Raises:
        ValueError: the arms did not play the same requests equally often, or a request failed.
    """
    base, new = _logs_by_request(played.baseline), _logs_by_request(played.candidate)
    if {key: len(logs) for key, logs in base.items()} != {k: len(logs) for k, logs in new.items()}:
        raise ValueError(f"the arms of run {played.id} did not play the same requests")
    ratios: dict[str, list[float]] = defaultdict(list)
    for key in sorted(base):
        ratios[key[0]].append(fmean(new[key]) - fmean(base[key]))
    groups = dict(sorted(ratios.items()))
    halves = zip(played.baseline.passes, played.candidate.passes, strict=True)
    return Gain(
        overall=grouped_interval(list(groups.values())),
        per_benchmark={name: grouped_interval([values]) for name, values in groups.items()},
        pairs=len(base),
        run_means=tuple(math.exp(_mean_log(b) - _mean_log(a)) for a, b in halves),
        diverged_share=_diverged(played),
    )


def noise_band(null: Gain) -> float:
    """Half width of the A/A band of a stock-versus-stock run, as a gain minus 1.

    The farthest that the interval reaches from 1: it counts both a bias between equal arms and how
    badly few requests know it, since a band believed too narrow lets null changes pass.
    """
    return max(null.overall.high, 1 / null.overall.low) - 1


def _logs_by_request(arm: Measurement) -> dict[tuple[str, str], list[float]]:
    """(benchmark, request) -> log rate of each pass."""
    logs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for outcomes in arm.passes:
        for outcome in outcomes:
            logs[outcome.benchmark, outcome.request_id].append(_log_rate(outcome))
    return logs


def _log_rate(outcome: RequestOutcome) -> float:
    rate = outcome.tokens_per_second
    if rate <= 0:
        raise ValueError(f"request {outcome.request_id} has no rate: {outcome.finish_reason}")
    return math.log(rate)


def _mean_log(outcomes: Sequence[RequestOutcome]) -> float:
    """Equal-weight mean over benchmarks of the mean log rate."""
    logs: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        logs[outcome.benchmark].append(_log_rate(outcome))
    return fmean(fmean(values) for values in logs.values())


def _diverged(played: PairedRun) -> float:
    base, new = _outputs(played.baseline), _outputs(played.candidate)
    return sum(base[key] != new[key] for key in base) / len(base)


def _outputs(arm: Measurement) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for outcomes in arm.passes:
        for outcome in outcomes:
            found[outcome.request_id].add(outcome.output_token_ids)
    return found

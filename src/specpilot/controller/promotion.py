"""The promotion rule: measurements in, one verdict out. Nothing else writes verdicts.

    lower 95% bound of the gain > 1 + 1% + 2 x noise, or 1 + 3% where outputs diverge

Before the rule comes what makes a run worthless (`void`) and what makes a system unacceptable
(`not_promoted`). A run that neither passes the rule nor excludes it is `undecided` when its
interval is so wide that a gain of twice the threshold would be missed more often than not.
"""

import math
from dataclasses import dataclass, field

from specpilot.controller.replays import REPLAY_FACTOR, too_many
from specpilot.core.system import OptionValue
from specpilot.core.verdict import Gain, Reason, Verdict, VerdictKind
from specpilot.loop.facts import ForcingFacts

MINIMUM_GAIN = 0.01
DIVERGED_GAIN = 0.03
NOISE_MULTIPLE = 2.0
_SPREAD_ERRORS = 6.0
"""Run means differ by twice the pooled standard error by chance; three sigma of that."""
_NORMAL_95 = 1.96
"""Half a two-sided 95% interval in standard errors. With few requests the interval is wider, so the
error that is read from it errs on the large side."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict may depend on.

    Attributes:
        noise: half width of the A/A band, as a gain minus 1.
        gain: None when a request failed in an arm.
        failed: the candidate's failed requests.
        baseline_share: the baseline's rate over its rate when it was measured before, or over its
            rate alone where it fell behind that; None where it was never measured.
        slowest_share: the share below which a run is void.
        replayed: requests that the candidate answered implausibly faster in a later pass.
        changed_options: options whose value differs from the baseline's.
        activations: the candidate's own counts; only a zero is believed.
    """

    attempt: int
    noise: float
    gain: Gain | None
    failed: int
    forcing: ForcingFacts | None
    baseline_share: float | None
    slowest_share: float
    replayed: int = 0
    changed_options: dict[str, OptionValue] = field(default_factory=dict)
    activations: dict[str, int] = field(default_factory=dict)
    baseline_activations: dict[str, int] = field(default_factory=dict)


def threshold(gain: Gain, noise: float) -> float:
    """What the lower bound, minus 1, has to exceed."""
    equal = MINIMUM_GAIN + NOISE_MULTIPLE * noise
    return max(DIVERGED_GAIN, equal) if gain.diverged_share > 0 else equal


def judge(evidence: Evidence) -> Verdict:
    """The verdict on one paired run."""
    return _void(evidence) or _unacceptable(evidence) or _by_rule(evidence)


def _void(evidence: Evidence) -> Verdict | None:
    if evidence.failed or evidence.gain is None:
        return _verdict(
            evidence, VerdictKind.VOID, Reason.FAILED_REQUESTS, f"{evidence.failed} requests failed"
        )
    spread = _spread(evidence.gain)
    allowed = _SPREAD_ERRORS * _standard_error(evidence.gain) + NOISE_MULTIPLE * evidence.noise
    if not spread <= allowed:
        means = " and ".join(f"{mean:.4f}" for mean in evidence.gain.run_means)
        return _verdict(
            evidence,
            VerdictKind.VOID,
            Reason.RUN_MEANS_DISAGREE,
            f"run means {means} differ by more than {allowed:.4f} in logs",
        )
    if too_many(evidence.replayed, evidence.gain.pairs):
        return _verdict(
            evidence,
            VerdictKind.VOID,
            Reason.RUN_MEANS_DISAGREE,
            f"{evidence.replayed} of {evidence.gain.pairs} requests came more than "
            f"{REPLAY_FACTOR:g} times as fast in a later pass as in the first",
        )
    share = evidence.baseline_share
    if share is not None and not share >= evidence.slowest_share:
        return _verdict(
            evidence,
            VerdictKind.VOID,
            Reason.BASELINE_OUT_OF_BAND,
            f"beside it the baseline ran at {share:.3f} of its rate alone, "
            f"below {evidence.slowest_share:.3f}",
        )
    return None


def _unacceptable(evidence: Evidence) -> Verdict | None:
    forcing = evidence.forcing
    if forcing is not None and not forcing.accepted:
        if forcing.reasons == ("too_little",):
            return _verdict(evidence, VerdictKind.UNDECIDED, Reason.LOW_POWER, forcing.detail)
        rate_only = set(forcing.reasons) <= {"rate"}
        rule = Reason.FORCING_RATE if rate_only else Reason.FORCING_EVENTS
        return _verdict(evidence, VerdictKind.NOT_PROMOTED, rule, forcing.detail)
    if evidence.changed_options and not _ran(evidence):
        return _verdict(
            evidence,
            VerdictKind.NOT_PROMOTED,
            Reason.NOT_ACTIVATED,
            f"options changed ({', '.join(sorted(evidence.changed_options))}) "
            "but no mechanism ran that the baseline did not run",
        )
    return None


def _ran(evidence: Evidence) -> bool:
    """Whether the counters show what changed options switch on.

    A switched option must run a mechanism that the baseline did not run; a tuned number keeps the
    mechanism that it tunes, so something must run at all.
    """
    active = {name for name, count in evidence.activations.items() if count > 0}
    before = {name for name, count in evidence.baseline_activations.items() if count > 0}
    switched = any(isinstance(value, bool | str) for value in evidence.changed_options.values())
    return not evidence.activations or bool(active - before if switched else active)


def _by_rule(evidence: Evidence) -> Verdict:
    gain = evidence.gain
    if gain is None:
        raise ValueError("a run without a gain is void")
    limit = threshold(gain, evidence.noise)
    overall = gain.overall
    numbers = f"gain {overall.point:.4f} [{overall.low:.4f}, {overall.high:.4f}]"
    if overall.low > 1 + limit:
        return _verdict(
            evidence,
            VerdictKind.PROMOTED,
            Reason.SIGNIFICANT_GAIN,
            f"{numbers}, lower bound above {1 + limit:.4f}",
        )
    width = math.log(overall.point / overall.low)
    visible = math.log((1 + 2 * limit) / (1 + limit))
    if overall.high > 1 + limit and width > visible:
        return _verdict(
            evidence,
            VerdictKind.UNDECIDED,
            Reason.LOW_POWER,
            f"{numbers} is too wide to tell a gain of {1 + 2 * limit:.4f} from {1 + limit:.4f}",
        )
    return _verdict(
        evidence,
        VerdictKind.NOT_PROMOTED,
        Reason.BELOW_THRESHOLD,
        f"{numbers}, lower bound not above {1 + limit:.4f}",
    )


def _spread(gain: Gain) -> float:
    logs = [math.log(mean) for mean in gain.run_means]
    return max(logs) - min(logs)


def _standard_error(gain: Gain) -> float:
    return math.log(gain.overall.high / gain.overall.low) / 2 / _NORMAL_95


def _verdict(evidence: Evidence, kind: VerdictKind, reason: Reason, detail: str) -> Verdict:
    limit = None if evidence.gain is None else threshold(evidence.gain, evidence.noise)
    return Verdict(
        kind=kind,
        reason=reason,
        detail=detail,
        gain=evidence.gain,
        threshold=limit,
        attempt=evidence.attempt,
    )

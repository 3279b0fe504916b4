"""What a run's A/A noise means for its verdicts, in words for people.

The rule is `controller.promotion`'s; here it is only said, by the loop, the tables and the report.
"""

from specpilot.controller.promotion import MINIMUM_GAIN, NOISE_MULTIPLE

LARGE_NOISE = 0.05
"""From here on the run's owner is warned: changes of the usual size could not be promoted."""
HOPELESS_GAIN = 0.5
"""Few changes gain as much: a run that needs it might as well not be made."""
REMEDIES = (
    "stop other work on this machine, leave the judge a core (engine.threads), or play more "
    "requests (workload.development)"
)


def needed_gain(noise: float) -> float:
    """What the lower bound of a gain, minus 1, has to exceed at this noise."""
    return MINIMUM_GAIN + NOISE_MULTIPLE * noise


def spell_limit(noise: float) -> str:
    """What cannot be promoted."""
    return f"at A/A noise ±{_percent(noise)} no gain under {_percent(needed_gain(noise))} can be"


def spell_noise(noise: float) -> str:
    """The band, and what it means; one line."""
    return (
        f"A/A noise ±{_percent(noise)}: a gain under {_percent(needed_gain(noise))} cannot be "
        "promoted at this noise"
    )


def noise_warning(noise: float | None) -> str | None:
    """What to do about noise that makes the run worth little; None where it is small enough."""
    if noise is None or noise <= LARGE_NOISE:
        return None
    needed = needed_gain(noise)
    hopeless = "this run can hardly prove anything, " if needed > HOPELESS_GAIN else ""
    return (
        f"WARNING: stock differs from itself by ±{_percent(noise)} on this machine: {hopeless}only "
        f"gains above {_percent(needed)} can be promoted; for smaller ones {REMEDIES}, and start "
        "again"
    )


def _percent(value: float) -> str:
    """Two digits that matter: 0.42%, 5.2%, 49%."""
    return f"{100 * value:.{0 if value >= 0.1 else 1 if value >= 0.01 else 2}f}%"

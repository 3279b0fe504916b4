"""Whether the system that a candidate is held against ran at its own speed.

A rival that a candidate slows makes it look fast. So the rival must reach most of the rate that it
had before. Where it does not, it is played again with nothing beside it: slow there too, the
machine slowed down, which both arms of a paired run share; fast there, it was the candidate.
"""

from collections.abc import Callable, Sequence

from specpilot.controller import evidence
from specpilot.controller.attribution import attributed
from specpilot.controller.off_loop import off_loop
from specpilot.controller.pairing import interleaved
from specpilot.core.system import System
from specpilot.loop.events import AttemptJudged, Noticed
from specpilot.loop.facts import SpeedFacts
from specpilot.loop.run import Run

_SLOWEST_SHARE = {"cpu": 0.7, "cuda": 0.9}
"""A rival below this share of its rate ran on another machine than it did then."""


def slowest_share(run: Run) -> float:
    """Share of its rate that a rival must reach on this kind of device."""
    device = run.deployment.platform.devices[0]
    return _SLOWEST_SHARE["cpu" if device == "cpu" else "cuda"] - 2 * min(run.noise, 0.05)


def known_speed(run: Run, system: System) -> SpeedFacts | None:
    """The highest rates that the system was measured at; None where it was not measured.

    A machine that was slow then lowered the baseline's rates too, and by as much these are raised:
    a low mark would hide from now on what a candidate does to the system.
    """
    judged = [attempt.judged for attempt in run.state.attempts() if attempt.judged is not None]
    return _known(run, system, judged)


def _known(run: Run, system: System, judged: Sequence[AttemptJudged]) -> SpeedFacts | None:
    if system.tree_hash == run.stock.tree_hash and run.state.noise is not None:
        return run.state.noise.baseline
    marks = [
        _raised(run, one, one.speed, [other for other in judged if other is not one])
        for one in judged
        if one.system == system and one.speed is not None
    ]
    # The highest: a candidate may slow itself in an attempt that comes to nothing.
    return max(marks, key=lambda speed: speed.overall_tokens_per_second, default=None)


def _raised(
    run: Run, one: AttemptJudged, speed: SpeedFacts, others: Sequence[AttemptJudged]
) -> SpeedFacts:
    before = _known(run, one.baseline, others)
    if before is None or one.baseline_speed is None:
        return speed
    lost = before.overall_tokens_per_second / one.baseline_speed.overall_tokens_per_second
    return _times(speed, max(lost, 1.0))


def _times(speed: SpeedFacts, factor: float) -> SpeedFacts:
    rates = {name: rate * factor for name, rate in speed.tokens_per_second.items()}
    overall = speed.overall_tokens_per_second * factor
    changed = {"tokens_per_second": rates, "overall_tokens_per_second": overall}
    return speed.model_copy(update=changed)


async def speed_alone(
    run: Run,
    devices: tuple[str, ...],
    rival: System,
    share: Callable[[SpeedFacts], float],
    what: str,
) -> SpeedFacts | None:
    """Rates of the rival on development requests with nothing beside it, where that is in question.

    Args:
        devices: leased by the caller; their servers are gone.
        share: what the rival reached beside the candidate, over the rates that it is given.
        what: names the measurement in the journal.

    Returns:
        None where the rival reached its earlier rate, or has none.

    Raises:
        InfrastructureFailure: the rival fails alone.
    """
    before = known_speed(run, rival)
    if before is None or share(before) >= slowest_share(run):
        return None
    with attributed(trusted=True):
        async with interleaved(
            run.arena(devices),
            {"alone": await off_loop(run.systems.export, rival)},
            run.development,
            seed=run.order_seed(f"alone-{what}"),
            trusted=frozenset({"alone"}),
        ) as (played, _):
            alone = evidence.speed(played["alone"])
    run.emit(
        Noticed(
            message=f"{what}: what it is held against ran at {share(before):.2f} of its earlier "
            f"rate, and at {share(alone):.2f} of its rate alone, measured after it"
        )
    )
    return alone

"""One timed attempt: paired run, forcing of its outputs, verdict, and promotion if asked for."""

import time
from dataclasses import dataclass

from specpilot.controller import evidence
from specpilot.controller.attribution import attributed
from specpilot.controller.off_loop import off_loop
from specpilot.controller.outcomes import Tampered, failed, outcomes_of, require_answers
from specpilot.controller.pairing import paired
from specpilot.controller.promotion import Evidence, judge
from specpilot.controller.repeating import repeated
from specpilot.controller.replays import replayed
from specpilot.controller.rivals import known_speed, slowest_share, speed_alone
from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import PairedRun
from specpilot.core.system import OptionValue, System
from specpilot.core.verdict import Reason, Verdict, VerdictKind
from specpilot.loop.events import AttemptJudged, AttemptStarted, Promoted
from specpilot.loop.facts import ForcingFacts, SpeedFacts
from specpilot.loop.run import Run
from specpilot.stats.gain import paired_gain


@dataclass(frozen=True, slots=True)
class _Played:
    """What one attempt measured.

    Attributes:
        forcing: None when a request of the candidate failed.
        alone: the baseline's rates with nothing beside it, where they were in question.
    """

    run: PairedRun
    forcing: ForcingFacts | None
    alone: SpeedFacts | None


async def time_attempt(
    run: Run, direction: str, key: str, change: System, *, submitted: bool
) -> AttemptJudged:
    """Move a change onto the current best and time it; the attempt counts from its start.

    The lease comes first: while others wait for the device, the best may move on.

    Raises:
        RebaseConflict: the change does not apply to the current best; no attempt is counted.
    """
    devices = run.leases.pick(run.pair_devices)
    async with run.leases.hold(devices, direction, "paired run"):
        baseline = run.best
        candidate = await off_loop(run.systems.rebase, change.commit, baseline.commit)
        number = _attempt_number(run, direction, key)
        run.emit(
            AttemptStarted(
                direction=direction, key=key, attempt=number, system=candidate, baseline=baseline
            )
        )
        known = _same_pair(run, direction, candidate, baseline)
        if known is not None:
            judged = known.model_copy(
                update={
                    "direction": direction,
                    "key": key,
                    "attempt": number,
                    "submitted": submitted,
                    "device_seconds": 0.0,
                }
            )
        else:
            judged = await _measure(run, direction, key, number, candidate, baseline, devices)
            judged = judged.model_copy(update={"submitted": submitted})
        run.emit(judged)
        promote_if_earned(run, judged)
    return judged


def promote_if_earned(run: Run, judged: AttemptJudged) -> None:
    """Make a submitted, promoted attempt the current best."""
    verdict = judged.verdict
    if not judged.submitted or verdict.kind is not VerdictKind.PROMOTED or verdict.gain is None:
        return
    if judged.baseline != run.best:
        return
    item = run.state.directions[judged.direction]
    run.emit(
        Promoted(
            direction=judged.direction,
            round=item.round,
            system=judged.system,
            baseline=judged.baseline,
            gain=verdict.gain,
        )
    )
    run.systems.name("best", judged.system.commit)


def changed_options(before: System, after: System) -> dict[str, OptionValue]:
    """Options of `after` that `before` lacks or has another value for."""
    return {
        key: value
        for key, value in after.options.items()
        if key not in before.options or before.options[key] != value
    }


def run_name(key: str) -> str:
    """Names an attempt's paired run and its record."""
    return f"run-{key[:12]}"


async def _measure(
    run: Run,
    direction: str,
    key: str,
    number: int,
    candidate: System,
    baseline: System,
    devices: tuple[str, ...],
) -> AttemptJudged:
    started = time.monotonic()
    found: _Played | None = None
    try:
        found = await repeated(
            run,
            devices,
            baseline,
            f"attempt {number} of {direction}",
            lambda: _play(run, key, candidate, baseline, devices),
        )
        verdict = _verdict(run, number, found, candidate, baseline)
    except Tampered as error:
        verdict = _void(number, Reason.TAMPERED, error)
    except EngineFailure as error:
        verdict = _void(number, Reason.ENGINE_FAILURE, error)
    played = None if found is None else found.run
    record = None if played is None else run.save(run_name(key), played.to_json())
    return AttemptJudged(
        direction=direction,
        key=key,
        attempt=number,
        system=candidate,
        baseline=baseline,
        submitted=False,
        verdict=verdict,
        forcing=None if found is None else found.forcing,
        speed=evidence.speed_or_none(None if played is None else played.candidate),
        baseline_speed=evidence.speed_or_none(None if played is None else played.baseline),
        baseline_alone=None if found is None else found.alone,
        activations={} if played is None else played.candidate.counters.activations,
        record=record,
        device_seconds=(time.monotonic() - started) * len(devices),
    )


async def _play(
    run: Run, key: str, candidate: System, baseline: System, devices: tuple[str, ...]
) -> _Played:
    """Both arms, then the baseline alone if it was slow beside the candidate.

    Raises:
        EngineFailure: the candidate's server failed.
        InfrastructureFailure: the baseline's server, one of its requests, or the scorer failed.
    """
    played, forcing = await _play_and_force(run, key, candidate, baseline, devices)
    if forcing is None:
        return _Played(played, forcing, None)
    beside = evidence.speed(played.baseline)
    alone = await speed_alone(
        run, devices, baseline, lambda rates: _share(beside, rates), run_name(key)
    )
    return _Played(played, forcing, alone)


async def _play_and_force(
    run: Run, key: str, candidate: System, baseline: System, devices: tuple[str, ...]
) -> tuple[PairedRun, ForcingFacts | None]:
    """Both arms, and the candidate's outputs under the scorer unless one of them is missing.

    Raises:
        EngineFailure: the candidate's server failed.
        InfrastructureFailure: the baseline's server, one of its requests, or the scorer failed.
    """
    async with paired(
        run.arena(devices),
        run_name(key),
        await off_loop(run.systems.export, baseline),
        await off_loop(run.systems.export, candidate),
        run.development,
        seed=run.order_seed(key),
    ) as (played, server):
        outcomes, own = outcomes_of(played.candidate), outcomes_of(played.baseline)
        with attributed(trusted=True):
            require_answers(
                own, where="baseline of a paired run", fix="see its log in the run folder"
            )
            if failed(outcomes):
                return played, None
            async with evidence.scorer_of(run, devices, (baseline, server)) as scorer:
                own = own if baseline == run.stock else ()
                return played, await evidence.force(run, scorer, run.development, outcomes, own)


def _verdict(run: Run, number: int, found: _Played, candidate: System, baseline: System) -> Verdict:
    played = found.run
    lost = failed(outcomes_of(played.candidate))
    known = found.alone or known_speed(run, baseline)
    return judge(
        Evidence(
            attempt=number,
            noise=run.noise,
            gain=None if lost else paired_gain(played),
            failed=len(lost),
            forcing=found.forcing,
            baseline_share=(
                None if known is None else _share(evidence.speed(played.baseline), known)
            ),
            slowest_share=slowest_share(run),
            replayed=0 if lost else replayed(played),
            changed_options=changed_options(baseline, candidate),
            activations=played.candidate.counters.activations,
            baseline_activations=played.baseline.counters.activations,
        )
    )


def _share(speed: SpeedFacts, of: SpeedFacts) -> float:
    return speed.overall_tokens_per_second / of.overall_tokens_per_second


def _same_pair(
    run: Run, direction: str, candidate: System, baseline: System
) -> AttemptJudged | None:
    """An earlier verdict on the same two trees; noise does not get a second chance.

    Void settles nothing; undecided may be retried by the direction that was undecided.
    """
    for attempt in run.state.attempts():
        judged = attempt.judged
        if (
            judged is not None
            and judged.verdict.kind is not VerdictKind.VOID
            and not (judged.verdict.kind is VerdictKind.UNDECIDED and judged.direction == direction)
            and judged.system.tree_hash == candidate.tree_hash
            and judged.baseline.tree_hash == baseline.tree_hash
        ):
            return judged
    return None


def _attempt_number(run: Run, direction: str, key: str) -> int:
    attempts = run.state.directions[direction].attempts
    if key in attempts:
        return attempts[key].started.attempt
    return len(attempts) + 1


def _void(number: int, reason: Reason, error: EngineFailure) -> Verdict:
    return Verdict(kind=VerdictKind.VOID, reason=reason, detail=str(error), attempt=number)

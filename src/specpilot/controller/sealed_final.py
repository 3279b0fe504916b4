"""The sealed final: a round's best against stock on requests that nobody has seen.

Two paired runs on fresh servers, then AR, stock and best interleaved on development requests, whose
servers also play longer outputs and score everything for token forcing. The paired runs are played
once: at a second try nothing about their requests would be unseen any more. What follows them is
tried again on fresh servers if it fails. Refused where agents and servers are not kept apart (paper
section 3.2, Phase 4).
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from specpilot.controller import evidence
from specpilot.controller.attribution import InfrastructureFailure, attributed
from specpilot.controller.outcomes import (
    FailedRequests,
    Tampered,
    outcomes_of,
    require_answers,
)
from specpilot.controller.pairing import BOTH_ORDERS, interleaved, merge_runs, paired
from specpilot.controller.promotion import Evidence, judge
from specpilot.controller.repeating import repeated, works_alone
from specpilot.controller.replays import replayed
from specpilot.controller.rivals import known_speed, slowest_share, speed_alone
from specpilot.controller.servers import play_once
from specpilot.controller.timing import changed_options
from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Isolation, Measurement, PairedRun
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.core.verdict import Reason, Verdict, VerdictKind
from specpilot.engines.base import RunningEngine
from specpilot.loop.events import FinalJudged, Noticed
from specpilot.loop.facts import ForcingFacts, SpeedFacts
from specpilot.loop.run import Run
from specpilot.stats.gain import paired_gain

_HELD_AGAINST = frozenset({"ar", "stock"})


async def judge_final(run: Run, number: int) -> None:
    """Confirm or reject the round's best; an unisolated run gets a refusal without a number."""
    if run.isolation is Isolation.NONE:
        refused = Verdict(
            kind=VerdictKind.VOID,
            reason=Reason.ISOLATION_TOO_WEAK,
            detail="isolation is 'none': no result of this run can be confirmed",
        )
        run.emit(FinalJudged(round=number, system=run.best, verdict=refused))
        return
    devices = run.leases.pick(run.pair_devices)
    async with run.leases.hold(devices, f"round {number}", "sealed final"):
        started = time.monotonic()
        event = await _judged(run, number, devices)
        seconds = (time.monotonic() - started) * len(devices)
    run.emit(event.model_copy(update={"device_seconds": seconds}))


async def _judged(run: Run, number: int, devices: tuple[str, ...]) -> FinalJudged:
    what = f"the sealed final of round {number}"
    timed = _timed_requests(run)
    try:
        played = await _played_once(run, number, devices, timed)
        return await _tried_twice(
            run, devices, what, lambda: _measured(run, number, devices, timed, played)
        )
    except EngineFailure as error:
        verdict = Verdict(kind=VerdictKind.VOID, reason=_reason(error), detail=str(error))
        return FinalJudged(round=number, system=run.best, verdict=verdict)


async def _played_once(
    run: Run, number: int, devices: tuple[str, ...], timed: Sequence[Request]
) -> PairedRun:
    """The paired runs; whatever fails in them voids the final.

    Raises:
        EngineFailure: the best failed, or stock failed beside it and not alone.
        InfrastructureFailure: stock fails alone.
    """
    try:
        return await _paired_runs(run, number, devices, timed)
    except InfrastructureFailure as failure:
        await works_alone(run, devices, run.stock)
        raise EngineFailure(
            f"stock failed beside the best and not alone ({failure.what}); sealed requests are not "
            "played a second time",
            where=f"the sealed final of round {number}",
            fix="start another run",
        ) from failure


async def _tried_twice(
    run: Run,
    devices: tuple[str, ...],
    what: str,
    measure: Callable[[], Awaitable[FinalJudged]],
) -> FinalJudged:
    """One failure may be an accident, two are the system's; an impossible answer is none."""
    try:
        return await repeated(run, devices, run.stock, what, measure)
    except Tampered:
        raise
    except EngineFailure as error:
        run.emit(Noticed(message=f"{what} is scored again on fresh servers: {error}"))
    return await repeated(run, devices, run.stock, what, measure)


def _reason(error: EngineFailure) -> Reason:
    match error:
        case Tampered():
            return Reason.TAMPERED
        case FailedRequests():
            return Reason.FAILED_REQUESTS
        case _:
            return Reason.ENGINE_FAILURE


async def _measured(
    run: Run, number: int, devices: tuple[str, ...], timed: Sequence[Request], played: PairedRun
) -> FinalJudged:
    arms = _arms(run)
    async with interleaved(
        run.arena(devices),
        arms,
        run.development,
        seed=run.order_seed(f"final-{number}"),
        trusted=_HELD_AGAINST,
    ) as (measured, turns):
        speeds = _speeds(measured)
        async with turns.of("best") as best:
            longer = await _play_longer(run, best)
        async with turns.of("stock") as scorer:
            forcing = await evidence.force(
                run, scorer, timed, outcomes_of(played.candidate), outcomes_of(played.baseline)
            )
            long_forcing = await evidence.force(run, scorer, run.sealed, longer) if longer else None
    share = partial(_stock_share, evidence.speed(played.baseline), speeds["stock"])
    alone = await speed_alone(run, devices, run.stock, share, f"final-{number}")
    known = alone or known_speed(run, run.stock)
    reached = None if known is None else share(known)
    verdict = _verdict(run, played, forcing, long_forcing, reached)
    rates = {name: item.overall_tokens_per_second for name, item in speeds.items()}
    return FinalJudged(
        round=number,
        system=run.best,
        verdict=verdict,
        gain=verdict.gain,
        forcing=forcing,
        long_forcing=long_forcing,
        speeds=speeds,
        speedup_over_ar=rates["best"] / rates["ar"],
        stock_speedup_over_ar=rates["stock"] / rates["ar"],
        stock_alone=alone,
        record=run.save(f"final-{number}", played.to_json()),
    )


def _speeds(measured: dict[str, Measurement]) -> dict[str, SpeedFacts]:
    speeds = {}
    for name, arm in measured.items():
        with attributed(name in _HELD_AGAINST):
            speeds[name] = evidence.speed(arm)
    return speeds


async def _paired_runs(
    run: Run, number: int, devices: tuple[str, ...], timed: Sequence[Request]
) -> PairedRun:
    """Two paired runs on fresh servers, the second in the opposite order."""
    stock, best = run.systems.export(run.stock), run.systems.export(run.best)
    runs = []
    for order in BOTH_ORDERS:
        async with paired(
            run.arena(devices),
            f"final-{number}.{order}",
            stock,
            best,
            timed,
            seed=run.order_seed(f"final-{number}.{order}"),
            orders=(order,),
        ) as (played, _):
            _require_both(played)
            runs.append(played)
    return merge_runs(f"final-{number}", runs)


def _require_both(played: PairedRun) -> None:
    """Every request answered by both arms, or the failure of the arm that did not.

    Raises:
        FailedRequests: requests of the best failed.
        InfrastructureFailure: requests of stock failed.
    """
    fix = "see the servers' logs in the run folder"
    with attributed(trusted=True):
        require_answers(outcomes_of(played.baseline), where="stock in the sealed final", fix=fix)
    require_answers(outcomes_of(played.candidate), where="the best in the sealed final", fix=fix)


def _arms(run: Run) -> dict[str, Checkout]:
    return {
        "ar": run.systems.export(run.stock, autoregressive=True),
        "stock": run.systems.export(run.stock),
        "best": run.systems.export(run.best),
    }


def _timed_requests(run: Run) -> tuple[Request, ...]:
    """Sealed requests at the length that development was timed at."""
    longest = run.deployment.workload.max_new_tokens
    return tuple(
        request.model_copy(update={"max_new_tokens": min(longest, request.max_new_tokens)})
        for request in run.sealed
    )


async def _play_longer(run: Run, server: RunningEngine) -> list[RequestOutcome]:
    """Outputs past the length that development ever saw, where late faults hide."""
    workload = run.deployment.workload
    if workload.sealed_max_new_tokens <= workload.max_new_tokens:
        return []
    outcomes = [await play_once(server, request) for request in run.sealed]
    require_answers(
        outcomes,
        where="longer outputs of the sealed final",
        fix="look at the server's log in the run folder",
    )
    return outcomes


def _stock_share(sealed: SpeedFacts, development: SpeedFacts, of: SpeedFacts) -> float:
    """Stock's rate over rates on development, the lower of two: as a rival, and on development.

    Sealed requests are others than those of development, so there steps are counted, not tokens:
    how many tokens a step gives depends on the text, how long it takes hardly does.
    """
    return min(
        development.overall_tokens_per_second / of.overall_tokens_per_second,
        _steps_per_second(sealed) / _steps_per_second(of),
    )


def _steps_per_second(speed: SpeedFacts) -> float:
    return speed.overall_tokens_per_second / (speed.tau or 1.0)


def _verdict(
    run: Run,
    played: PairedRun,
    forcing: ForcingFacts,
    long_forcing: ForcingFacts | None,
    stock_share: float | None,
) -> Verdict:
    refused = long_forcing is not None and not long_forcing.accepted
    return judge(
        Evidence(
            attempt=0,
            noise=run.noise,
            gain=paired_gain(played),
            failed=0,
            forcing=long_forcing if refused else forcing,
            baseline_share=stock_share,
            slowest_share=slowest_share(run),
            replayed=replayed(played),
            changed_options=changed_options(run.stock, run.best),
            activations=played.candidate.counters.activations,
            baseline_activations=played.baseline.counters.activations,
        )
    )

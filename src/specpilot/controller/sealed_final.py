"""The sealed final: a round's best against stock on requests that nobody has seen.

Two paired runs on fresh servers, then AR, stock and best interleaved on development requests, whose
servers also play longer outputs and score everything for token forcing. Refused where agents and
servers are not kept apart (paper section 3.2, Phase 4).
"""

import time
from collections.abc import Sequence

from specpilot.controller import evidence
from specpilot.controller.pairing import BOTH_ORDERS, interleaved, merge_runs, paired
from specpilot.controller.promotion import Evidence, judge
from specpilot.controller.servers import Tampered, play_once
from specpilot.controller.timing import changed_options, failed_requests, slowest_share
from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Isolation, PairedRun
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.core.verdict import Reason, Verdict, VerdictKind
from specpilot.engines.base import RunningEngine
from specpilot.loop.events import FinalJudged
from specpilot.loop.facts import ForcingFacts, SpeedFacts
from specpilot.loop.run import Run
from specpilot.stats.gain import paired_gain


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
        try:
            event = await _measured(run, number, devices)
        except Tampered as error:
            event = _void(run, number, Reason.TAMPERED, error)
        except EngineFailure as error:
            event = _void(run, number, Reason.ENGINE_FAILURE, error)
        seconds = (time.monotonic() - started) * len(devices)
    run.emit(event.model_copy(update={"device_seconds": seconds}))


async def _measured(run: Run, number: int, devices: tuple[str, ...]) -> FinalJudged:
    timed = _timed_requests(run)
    played = await _paired_runs(run, number, devices, timed)
    forcing: ForcingFacts | None = None
    long_forcing: ForcingFacts | None = None
    speeds: dict[str, SpeedFacts] = {}
    if not failed_requests(played):
        async with interleaved(run.arena(devices), _arms(run), run.development, seed=2) as (
            measured,
            servers,
        ):
            speeds = {name: evidence.speed(arm) for name, arm in measured.items()}
            longer = await _play_longer(run, servers["best"])
            forcing = await evidence.force(
                run,
                servers["stock"],
                timed,
                evidence.outcomes_of(played.candidate),
                evidence.outcomes_of(played.baseline),
            )
            if longer:
                long_forcing = await evidence.force(run, servers["stock"], run.sealed, longer)
    verdict = _verdict(run, played, forcing, long_forcing)
    rates = {name: item.overall_tokens_per_second for name, item in speeds.items()}
    return FinalJudged(
        round=number,
        system=run.best,
        verdict=verdict,
        gain=verdict.gain,
        forcing=forcing,
        long_forcing=long_forcing,
        speeds=speeds,
        speedup_over_ar=rates["best"] / rates["ar"] if rates else None,
        stock_speedup_over_ar=rates["stock"] / rates["ar"] if rates else None,
        record=run.save(f"final-{number}", played.to_json()),
    )


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
            seed=100 * number + order,
            orders=(order,),
        ) as (played, _):
            runs.append(played)
    return merge_runs(f"final-{number}", runs)


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
    failed = [outcome for outcome in outcomes if outcome.finish_reason is FinishReason.FAILED]
    if failed:
        raise EngineFailure(
            f"{len(failed)} longer outputs failed ({failed[0].error})",
            where="sealed final",
            fix="look at the server's log in the run folder",
        )
    return outcomes


def _verdict(
    run: Run,
    played: PairedRun,
    forcing: ForcingFacts | None,
    long_forcing: ForcingFacts | None,
) -> Verdict:
    failed = failed_requests(played)
    refused = long_forcing is not None and not long_forcing.accepted
    return judge(
        Evidence(
            attempt=0,
            noise=run.noise,
            gain=None if failed else paired_gain(played),
            failed=failed,
            forcing=long_forcing if refused else forcing,
            baseline=None,
            reference=None,
            slowest_share=slowest_share(run),
            changed_options=changed_options(run.stock, run.best),
            activations=played.candidate.counters.activations,
            baseline_activations=played.baseline.counters.activations,
        )
    )


def _void(run: Run, number: int, reason: Reason, error: EngineFailure) -> FinalJudged:
    verdict = Verdict(kind=VerdictKind.VOID, reason=reason, detail=str(error))
    return FinalJudged(round=number, system=run.best, verdict=verdict)

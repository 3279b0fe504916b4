"""From raw outcomes to the facts that verdicts and events carry: rates and forcing."""

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import fmean

from specpilot.controller.off_loop import off_loop
from specpilot.controller.outcomes import failed, outcomes_of, require_answers
from specpilot.controller.servers import serving
from specpilot.core.measurement import Measurement, PairedRun
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import System
from specpilot.engines.base import RunningEngine
from specpilot.forcing.outputs import outputs_of
from specpilot.forcing.reference import StockReference
from specpilot.forcing.rules import ForcingResult
from specpilot.forcing.run import force_outputs, measure_reference
from specpilot.loop.facts import ForcingFacts, SpeedFacts
from specpilot.loop.run import Run


def speed(arm: Measurement) -> SpeedFacts:
    """Rates of one arm.

    Raises:
        FailedRequests: a request failed, so that it has no rate.
    """
    require_answers(
        outcomes_of(arm),
        where=f"system {arm.system.tree_hash[:12]}",
        fix="make every request answer before its rate is asked for",
    )
    rates: dict[str, list[float]] = defaultdict(list)
    for outcomes in arm.passes:
        for outcome in outcomes:
            rates[outcome.benchmark].append(math.log(outcome.tokens_per_second))
    per = {name: math.exp(fmean(values)) for name, values in sorted(rates.items())}
    return SpeedFacts(
        tokens_per_second=per,
        overall_tokens_per_second=math.exp(fmean(math.log(rate) for rate in per.values())),
        tau=arm.counters.tau,
        tau_per_benchmark=arm.tau_per_benchmark,
        output_tokens=sum(len(o.output_token_ids) for p in arm.passes for o in p),
        requests=sum(map(len, arm.passes)),
    )


def seconds_per_token(outcomes: Sequence[RequestOutcome]) -> float:
    """Of all tokens after the first ones, which come out of the prefill."""
    seconds = sum(o.seconds - (o.seconds_to_first_token or 0.0) for o in outcomes)
    return seconds / max(sum(len(o.output_token_ids) - 1 for o in outcomes), 1)


def speed_or_none(arm: Measurement | None) -> SpeedFacts | None:
    """Rates of an arm; None when there is no arm or a request of it failed."""
    return None if arm is None or failed(outcomes_of(arm)) else speed(arm)


@asynccontextmanager
async def scorer_of(
    run: Run, devices: tuple[str, ...], running: tuple[System, RunningEngine] | None = None
) -> AsyncIterator[RunningEngine]:
    """A stock server that scores: one that runs already if it serves stock, else a fresh one."""
    if running is not None and running[0].tree_hash == run.stock.tree_hash:
        yield running[1]
        return
    checkout = await off_loop(run.systems.export, run.stock)
    async with serving(run.arena(devices), checkout, run.development) as scorer:
        yield scorer


async def force(
    run: Run,
    scorer: RunningEngine,
    requests: Sequence[Request],
    outcomes: Sequence[RequestOutcome],
    stock_outcomes: Sequence[RequestOutcome] = (),
) -> ForcingFacts:
    """Token forcing of outputs (paper section 3.3).

    Args:
        scorer: a running stock server.
        requests: what was played.
        outcomes: the candidate's, none of them failed.
        stock_outcomes: stock's own on the same requests, for the audit.
    """
    result = await force_outputs(
        scorer,
        outputs_of(requests, outcomes),
        stock_reference(run),
        stop_ids=run.parts.adapter.stop_ids,
        stock_outputs=outputs_of(requests, stock_outcomes),
    )
    return forcing_facts(result)


async def measure_stock(
    run: Run, scorer: RunningEngine, arms: dict[str, Measurement]
) -> StockReference:
    """Stock's and AR's development outputs under a running stock server."""
    outputs = {name: outputs_of(run.development, outcomes_of(arm)) for name, arm in arms.items()}
    return await measure_reference(scorer, outputs["stock"], outputs["ar"])


def stock_reference(run: Run) -> StockReference:
    """What phase 0 recorded of stock under the scorer."""
    facts = run.state.stock_facts
    if facts is None:
        raise ValueError("stock is forced before any candidate")
    return StockReference.model_validate(run.load(facts.record)["reference"])


def known_outputs(run: Run, system: System) -> dict[str, tuple[int, ...]]:
    """Development outputs of a system that was played before, by request; empty otherwise."""
    for attempt in run.state.attempts():
        judged = attempt.judged
        if judged is not None and judged.system == system and judged.record is not None:
            return _outputs_of(PairedRun.model_validate(run.load(judged.record)).candidate)
    noise = run.state.noise
    if noise is not None and system.tree_hash == run.stock.tree_hash:
        return _outputs_of(PairedRun.model_validate(run.load(noise.record)).baseline)
    return {}


def _outputs_of(arm: Measurement) -> dict[str, tuple[int, ...]]:
    return {outcome.request_id: outcome.output_token_ids for outcome in arm.passes[0]}


def forcing_facts(result: ForcingResult) -> ForcingFacts:
    """The part of a forcing result that events carry."""
    return ForcingFacts(
        accepted=result.accepted,
        reasons=tuple(str(reason) for reason in result.reasons),
        tokens=result.tokens,
        mismatches=result.mismatches,
        mismatch_rate=result.mismatch_rate,
        stock_mismatch_rate=result.stock_mismatch_rate,
        rate_difference_low=result.rate_difference_low,
        rate_difference_high=result.rate_difference_high,
        delta_nats=result.delta_nats,
        large_margin_events=result.large_margin_events,
        unexplained=result.unexplained,
        early_ends=result.early_ends,
        stock_events=result.stock_events,
        stock_tokens=result.stock_tokens,
        detail=result.detail,
    )


def stock_forcing_facts(reference: StockReference) -> ForcingFacts:
    """Stock held against itself: what every candidate is compared with."""
    mismatches = sum(entry.mismatches for entry in reference.tallies)
    return ForcingFacts(
        accepted=True,
        tokens=reference.tokens,
        mismatches=mismatches,
        mismatch_rate=reference.mismatch_rate,
        stock_mismatch_rate=reference.mismatch_rate,
        delta_nats=reference.delta_nats,
        large_margin_events=reference.large_margin_events,
        unexplained=0,
        stock_events=reference.large_margin_events,
        stock_tokens=reference.tokens,
        detail="stock",
    )

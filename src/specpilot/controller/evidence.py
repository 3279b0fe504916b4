"""From raw outcomes to the facts that verdicts and events carry: rates, gains, forcing."""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from scipy import stats as distributions

from specpilot.controller.servers import serving
from specpilot.core.measurement import Measurement, OutputScore, PairedRun, TokenScore
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.verdict import Gain, Interval
from specpilot.loop.facts import ForcingFacts, SpeedFacts
from specpilot.loop.run import Run

Output = tuple[Request, RequestOutcome]


def gain(played: PairedRun) -> Gain:
    """Gain of the candidate over the baseline."""
    base, new = played.baseline, played.candidate
    logs: dict[str, list[float]] = defaultdict(list)
    for key, benchmark in _keys(base):
        logs[benchmark].append(_mean_log(new, key) - _mean_log(base, key))
    per = {name: _interval([values]) for name, values in sorted(logs.items())}
    halves = tuple(
        math.exp(fmean(_half(played, half, name) for name in sorted(logs)))
        for half in range(len(base.passes))
    )
    return Gain(
        overall=_interval([logs[name] for name in sorted(logs)]),
        per_benchmark=per,
        pairs=sum(map(len, logs.values())),
        run_means=halves,
        diverged_share=_diverged(played),
    )


def noise_band(null: Gain) -> float:
    """Half width of the A/A band: the largest gain that the interval of nothing reaches."""
    return max(null.overall.high, 1 / null.overall.low) - 1


def speed(arm: Measurement) -> SpeedFacts:
    """Rates of one arm."""
    rates: dict[str, list[float]] = defaultdict(list)
    for outcomes in arm.passes:
        for outcome in outcomes:
            rates[outcome.benchmark].append(math.log(outcome.tokens_per_second))
    per = {name: math.exp(fmean(values)) for name, values in sorted(rates.items())}
    return SpeedFacts(
        tokens_per_second=per,
        overall_tokens_per_second=math.exp(fmean(math.log(rate) for rate in per.values())),
        tau=arm.counters.tau,
        output_tokens=sum(len(o.output_token_ids) for p in arm.passes for o in p),
        requests=sum(map(len, arm.passes)),
    )


def speed_or_none(arm: Measurement | None) -> SpeedFacts | None:
    """Rates of an arm; None when there is no arm or a request of it failed."""
    if arm is None or any(o.finish_reason is FinishReason.FAILED for p in arm.passes for o in p):
        return None
    return speed(arm)


def outputs_of(arm: Measurement, requests: Sequence[Request]) -> tuple[Output, ...]:
    """Every distinct output of an arm with its request."""
    by_id = {request.id: request for request in requests}
    distinct = {
        (o.request_id, o.output_token_ids, o.finish_reason): (by_id[o.request_id], o)
        for outcomes in arm.passes
        for o in outcomes
    }
    return tuple(distinct.values())


async def force(run: Run, devices: tuple[str, ...], outputs: Sequence[Output]) -> ForcingFacts:
    """Token forcing of outputs against stock's own record (paper section 3.3)."""
    facts = run.state.stock_facts
    if facts is None:
        raise ValueError("stock is forced before any candidate")
    scores = await score_outputs(run, devices, outputs)
    return judge_forcing(scores, stock=facts.forcing, delta_nats=facts.delta_nats)


async def score_outputs(
    run: Run, devices: tuple[str, ...], outputs: Sequence[Output]
) -> tuple[OutputScore, ...]:
    """Score outputs on a fresh stock server."""
    checkout = run.systems.export(run.stock)
    async with serving(run.arena(devices), checkout, run.development) as scorer:
        return tuple(
            [
                OutputScore(
                    request_id=request.id,
                    tokens=await scorer.score(request.prompt_token_ids, outcome.output_token_ids),
                )
                for request, outcome in outputs
            ]
        )


def departure_margins(
    stock: Sequence[OutputScore], autoregressive: Sequence[OutputScore]
) -> list[float]:
    """Per request, the scorer's margin where stock's output first leaves AR's, in nats."""
    other = {item.request_id: item.tokens for item in autoregressive}
    margins = []
    for item in stock:
        for mine, theirs in zip(item.tokens, other[item.request_id], strict=False):
            if mine.token != theirs.token:
                margins.append(max(mine.margin_nats, theirs.margin_nats))
                break
    return margins


def delta_of(margins: Sequence[float]) -> float:
    """The largest margin rounded up to a multiple of 1/8 nat, at least 1/8."""
    return max(math.ceil(max(margins, default=0.0) * 8), 1) / 8


def judge_stock(scores: Sequence[OutputScore], delta_nats: float) -> ForcingFacts:
    """Stock under its own scorer."""
    return judge_forcing(scores, stock=None, delta_nats=delta_nats)


def judge_forcing(
    scores: Sequence[OutputScore], *, stock: ForcingFacts | None, delta_nats: float
) -> ForcingFacts:
    """Rate rule and event rule; without `stock` the facts describe stock itself."""
    tokens = [token for item in scores for token in item.tokens]
    wrong = [token for token in tokens if token.token != token.argmax]
    events = sum(_large(token, delta_nats) for token in wrong)
    rate = len(wrong) / max(len(tokens), 1)
    base = rate if stock is None else stock.mismatch_rate
    stock_events = events if stock is None else stock.large_margin_events
    stock_tokens = len(tokens) if stock is None else stock.tokens
    likely = 1.0
    if events:
        share = len(tokens) / (len(tokens) + stock_tokens)
        likely = float(
            distributions.binomtest(
                events, events + stock_events, share, alternative="greater"
            ).pvalue
        )
    too_often = rate - 1.645 * _rate_error(scores, rate) > base + 0.005
    return ForcingFacts(
        accepted=stock is None or (likely >= 0.05 and not too_often),
        tokens=len(tokens),
        mismatches=len(wrong),
        mismatch_rate=rate,
        stock_mismatch_rate=base,
        delta_nats=delta_nats,
        large_margin_events=events,
        unexplained=events,
        stock_events=stock_events,
        stock_tokens=stock_tokens,
        detail=f"{events} events of {len(tokens)} tokens, mismatch rate {rate:.4f}",
    )


def _rate_error(scores: Sequence[OutputScore], rate: float) -> float:
    total = sum(len(item.tokens) for item in scores)
    squares = sum(
        (sum(t.token != t.argmax for t in item.tokens) - rate * len(item.tokens)) ** 2
        for item in scores
    )
    return math.sqrt(squares) / max(total, 1)


def _large(token: TokenScore, delta_nats: float) -> bool:
    return token.margin_nats > 2 * delta_nats


def _keys(arm: Measurement) -> list[tuple[tuple[str, str], str]]:
    return sorted({((o.request_id, o.benchmark), o.benchmark) for o in arm.passes[0]})


def _mean_log(arm: Measurement, key: tuple[str, str]) -> float:
    return fmean(
        math.log(o.tokens_per_second)
        for outcomes in arm.passes
        for o in outcomes
        if (o.request_id, o.benchmark) == key
    )


def _half(played: PairedRun, half: int, benchmark: str) -> float:
    def mean(arm: Measurement) -> float:
        return fmean(
            math.log(o.tokens_per_second) for o in arm.passes[half] if o.benchmark == benchmark
        )

    return mean(played.candidate) - mean(played.baseline)


def _interval(groups: list[list[float]]) -> Interval:
    mean = fmean(fmean(values) for values in groups)
    variance = 0.0
    for values in groups:
        if len(values) > 1:
            center = fmean(values)
            spread = sum((v - center) ** 2 for v in values) / (len(values) - 1)
            variance += spread / len(values)
    error = math.sqrt(variance) / len(groups)
    free = max(sum(map(len, groups)) - len(groups), 1)
    width = float(distributions.t.ppf(0.975, free)) * error
    return Interval(point=math.exp(mean), low=math.exp(mean - width), high=math.exp(mean + width))


def _diverged(played: PairedRun) -> float:
    def outputs(arm: Measurement) -> dict[str, set[tuple[int, ...]]]:
        found: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for outcomes in arm.passes:
            for o in outcomes:
                found[o.request_id].add(o.output_token_ids)
        return found

    base, new = outputs(played.baseline), outputs(played.candidate)
    return sum(base[key] != new[key] for key in base) / len(base)

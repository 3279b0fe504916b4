"""`specpilot plan DEPLOYMENT`: time, GPU-hours, money and statistical power before spending."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot.cli.output import finite, print_json
from specpilot.core.deployment import Deployment, load_deployment

ASSUMED_TOKENS_PER_SECOND = {"cpu": 40.0, "cuda": 150.0}
"""Of one request, until a run has measured it."""
SERVER_START_SECONDS = {"cpu": 6.0, "cuda": 60.0}
NOISE_PASSES, FINAL_PASSES, ATTEMPT_PASSES = 4, 8, 4
PHASE0_PASSES = 3.0
SPREADS = (0.01, 0.02, 0.05)
"""Standard deviations of a request's log rate ratio for which power is stated."""
POWER = 0.8
"""Probability with which a stated gain would be promoted."""


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, callback=finite, help="tokens/s of one request, if you know it"),
    ] = None,
    usd_per_gpu_hour: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="price of a GPU")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the estimate as JSON")] = False,
) -> None:
    """Estimate what a run costs and what gain it could prove."""
    found = estimate(load_deployment(deployment), rate, usd_per_gpu_hour)
    if as_json:
        print_json(found)
        return
    typer.echo(
        f"about {found['hours']:.2f} hours with every attempt used, {found['gpu_hours']:.2f} "
        f"GPU-hours, at {found['assumed_tokens_per_second']:g} tokens/s "
        f"({'given' if rate else 'assumed'})"
    )
    usd = found["gpu_usd"]
    if usd is not None:
        typer.echo(f"GPUs: about {usd:.2f} USD")
    typer.echo(f"agents: {found['agent_usd']}")
    for row in found["power"]:
        gain = row["smallest_gain"]
        proved = "no gain below 100%" if gain is None else f"gains above {gain:.1%}"
        typer.echo(
            f"requests that vary by {row['spread']:.0%}: {found['pairs']} pairs prove {proved}"
        )
    for limit in found["limits"]:
        typer.echo(limit)


def estimate(
    deployment: Deployment, rate: float | None, usd_per_gpu_hour: float | None
) -> dict[str, Any]:
    """The estimate; every assumption is in it."""
    kind = "cpu" if deployment.platform.devices[0] == "cpu" else "cuda"
    devices = min(2, len(deployment.platform.devices))
    workload, budget, agent = deployment.workload, deployment.budget, deployment.agent
    names = len(workload.benchmarks)
    tokens_per_second = (rate or ASSUMED_TOKENS_PER_SECOND[kind]) * devices
    one_pass = names * workload.development * workload.max_new_tokens / tokens_per_second
    sealed = names * workload.sealed * workload.max_new_tokens / tokens_per_second
    longer = names * workload.sealed * workload.sealed_max_new_tokens / tokens_per_second
    start = 2 * SERVER_START_SECONDS[kind]
    attempts = agent.max_directions * budget.max_attempts_per_direction
    seconds = (
        NOISE_PASSES * one_pass + PHASE0_PASSES * one_pass + 6 * start
        + budget.max_rounds * (
            attempts * (ATTEMPT_PASSES * one_pass + 2 * start)
            + FINAL_PASSES * sealed + longer + PHASE0_PASSES * one_pass + 6 * start
        )
    )  # fmt: skip
    levels = len(deployment.regime.concurrency)
    hours = seconds * levels / 3600
    gpu_hours = hours * devices if kind == "cuda" else 0.0
    pairs = names * workload.development
    return {
        "hours": hours,
        "gpu_hours": gpu_hours,
        "gpu_usd": None if usd_per_gpu_hour is None else gpu_hours * usd_per_gpu_hour,
        "agent_usd": _agent_money(deployment),
        "assumed_tokens_per_second": tokens_per_second / devices,
        "attempts": attempts * budget.max_rounds,
        "pairs": pairs,
        "power": [{"spread": s, "smallest_gain": smallest_gain(s, pairs, names)} for s in SPREADS],
        "limits": _limits(deployment, hours, gpu_hours),
    }


def smallest_gain(spread: float, pairs: int, benchmarks: int) -> float | None:
    """Gain minus 1 that the promotion rule proves with 80% power.

    The noise band is that of equally many stock-against-stock pairs with the same spread. None
    where the pairs leave no spread to estimate, or no gain below a doubling is proved.
    """
    from scipy import stats

    from specpilot.controller.promotion import MINIMUM_GAIN, NOISE_MULTIPLE
    from specpilot.stats.interval import CONFIDENCE
    from specpilot.stats.power import promotion_power

    if pairs <= benchmarks:
        return None
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, pairs - benchmarks))
    threshold = MINIMUM_GAIN + NOISE_MULTIPLE * math.expm1(quantile * spread / math.sqrt(pairs))

    def proved(gain: float) -> bool:
        power = promotion_power(
            gain, threshold=threshold, request_noise=spread, pairs=pairs, benchmarks=benchmarks
        )
        return power >= POWER

    low, high = 0.0, 1.0
    if not proved(high):
        return None
    while high - low > 1e-5:
        middle = (low + high) / 2
        low, high = (low, middle) if proved(middle) else (middle, high)
    return high


def _agent_money(deployment: Deployment) -> str:
    if deployment.agent.kind != "command":
        return "no money (no language model)"
    limit = deployment.budget.max_usd
    return "no limit; set budget.max_usd" if limit is None else f"at most {limit:g} USD"


def _limits(deployment: Deployment, hours: float, gpu_hours: float) -> list[str]:
    allowed = deployment.budget.max_gpu_hours
    found = []
    if allowed is not None and gpu_hours > allowed:
        found.append(
            f"budget.max_gpu_hours = {allowed:g} ends the run before every attempt is used"
        )
    if deployment.agent.deadline_seconds < hours * 3600 / max(deployment.agent.max_directions, 1):
        found.append("agent.deadline_seconds may end directions early on one device")
    return found

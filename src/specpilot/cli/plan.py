"""`specpilot plan DEPLOYMENT`: time, GPU-hours, money and statistical power before spending."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot.cli.output import print_json
from specpilot.core.deployment import Deployment, load_deployment

ASSUMED_TOKENS_PER_SECOND = {"cpu": 40.0, "cuda": 150.0}
"""Of one request, until a run has measured it."""
SERVER_START_SECONDS = {"cpu": 6.0, "cuda": 60.0}
NOISE_PASSES, FINAL_PASSES, ATTEMPT_PASSES = 4, 8, 4
PHASE0_PASSES = 3.0
SPREADS = (0.01, 0.02, 0.05)
"""Standard deviations of a request's log rate ratio for which power is stated."""
MARGIN = 0.01
"""What a gain's lower bound must exceed besides twice the noise."""


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="tokens/s of one request, if you know it")
    ] = None,
    usd_per_gpu_hour: Annotated[float | None, typer.Option(min=0, help="price of a GPU")] = None,
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
        typer.echo(
            f"requests that vary by {row['spread']:.0%}: {found['pairs']} pairs prove gains above "
            f"{row['smallest_gain']:.1%}"
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
        "power": [{"spread": s, "smallest_gain": smallest_gain(s, pairs)} for s in SPREADS],
        "limits": _limits(deployment, hours, gpu_hours),
    }


def smallest_gain(spread: float, pairs: int) -> float:
    """Gain minus 1 that is proved with 80% power; the noise band is taken from the same spread."""
    from scipy import stats

    if pairs < 2:
        return math.inf
    error = spread / math.sqrt(pairs)
    free = pairs - 1
    band = stats.t.ppf(0.975, free) * error
    needed = math.log1p(MARGIN + 2 * band) + (stats.t.ppf(0.975, free) + stats.t.ppf(0.8, free)) * (
        error
    )
    return float(math.expm1(needed))


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

"""`specpilot plan DEPLOYMENT`: time, GPU-hours, money and statistical power before spending."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specpilot.cli.earlier_runs import Speed, known_speed
from specpilot.cli.estimate import device_kind, paired_run_seconds, spell_seconds, whole_run
from specpilot.cli.models import require_models
from specpilot.cli.output import finite, print_json, say
from specpilot.controller.noise import spell_limit
from specpilot.core.deployment import Deployment, load_deployment

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
    """Check that all is there; estimate what a run costs and what gain it could prove."""
    chosen = load_deployment(deployment)
    ready = check_inputs(chosen)
    found = estimate(chosen, known_speed(chosen, rate), usd_per_gpu_hour)
    if as_json:
        print_json({**found, "ready": ready})
        return
    for line in ready:
        say(f"ready: {line}")
    for line in spell_estimate(found):
        say(line)
    if device_kind(chosen) == "cpu" and chosen.engine.kind != "simulated":
        say(f"all of it on idle cores: 'specpilot doctor {deployment}' looks whether they are")


def check_inputs(deployment: Deployment) -> list[str]:
    """Models and requests, read as a run would; one line for each.

    Raises:
        SpecPilotError: something is missing or does not fit.
    """
    if deployment.engine.kind == "simulated":
        return ["engine, models and requests are simulated"]
    from specpilot.workload.loading import load_requests

    models = require_models(deployment)
    target = next(item.folder for item in models if item.role == "target")
    split = load_requests(deployment, target)
    longest = max(len(request.prompt_token_ids) for request in split.development)
    requests = (
        f"{len(split.development)} development and {len(split.sealed)} sealed requests, "
        f"longest prompt {longest} tokens"
    )
    return [*(f"{item.role} {item.spell()}" for item in models), requests]


def spell_estimate(found: Mapping[str, Any]) -> list[str]:
    """The estimate in lines."""
    lines = _spell_load(found["concurrency"])
    lines += [
        f"about {spell_seconds(3600 * found['usual_hours'])}, at most "
        f"{spell_seconds(3600 * found['hours'])} with every attempt used, at "
        f"{found['tokens_per_second']:.3g} tokens/s ({found['speed_source']})"
    ]
    if found["gpu_hours"]:
        lines.append(f"GPUs: at most {found['gpu_hours']:.2f} GPU-hours")
    if found["gpu_usd"] is not None:
        lines.append(f"GPUs: at most {found['gpu_usd']:.2f} USD")
    lines.append(f"agents: {found['agent_usd']}")
    if found["noise"] is not None:
        lines.append(f"{spell_limit(found['noise'])} promoted (measured by that run)")
    for row in found["power"]:
        gain = row["smallest_gain"]
        proved = "no gain below 100%" if gain is None else f"gains above {gain:.1%}"
        lines.append(
            f"if rates of one request vary by {row['spread']:.0%}: {found['pairs']} pairs prove "
            f"{proved}"
        )
    return [*lines, *found["limits"]]


def estimate(
    deployment: Deployment, speed: Speed, usd_per_gpu_hour: float | None = None
) -> dict[str, Any]:
    """The estimate; every assumption is in it."""
    workload, budget, agent = deployment.workload, deployment.budget, deployment.agent
    levels = len(deployment.regime.concurrency)
    groups = levels * len(workload.benchmarks)
    unit = paired_run_seconds(deployment, speed.tokens_per_second)
    usual = whole_run(deployment, unit) / 3600
    hours = whole_run(deployment, unit, budget.max_attempts_per_direction) / 3600
    devices = min(2, len(deployment.platform.devices))
    gpu_hours = hours * devices if device_kind(deployment) == "cuda" else 0.0
    pairs = groups * workload.development
    return {
        "usual_hours": usual,
        "hours": hours,
        "gpu_hours": gpu_hours,
        "gpu_usd": None if usd_per_gpu_hour is None else gpu_hours * usd_per_gpu_hour,
        "agent_usd": _agent_money(deployment),
        "tokens_per_second": speed.tokens_per_second,
        "speed_source": speed.source,
        "noise": speed.noise,
        "attempts": agent.max_directions * budget.max_attempts_per_direction * budget.max_rounds,
        "pairs": pairs,
        "power": [{"spread": s, "smallest_gain": smallest_gain(s, pairs, groups)} for s in SPREADS],
        "concurrency": list(deployment.regime.concurrency),
        "limits": _limits(deployment, hours, gpu_hours),
    }


def _spell_load(concurrency: Sequence[int]) -> list[str]:
    """What a load of several requests means for the numbers; nothing for one at a time."""
    if max(concurrency) == 1:
        return []
    sizes = ", ".join(map(str, concurrency))
    return [
        f"requests in flight: {sizes}, taking turns: as long as one at a time, each batch size "
        "played on its own"
    ]


def smallest_gain(spread: float, pairs: int, benchmarks: int) -> float | None:
    """Gain minus 1 that the promotion rule proves with 80% power.

    Each batch size has its own benchmarks, as it has in the interval of a gain.

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

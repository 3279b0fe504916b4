"""What earlier runs of the same models on the same devices measured: better than an assumption."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from specpilot.cli.estimate import device_kind, paired_run_seconds
from specpilot.cli.runs import JOURNAL_FILE, RUNS, has_begun, with_absolute_paths
from specpilot.controller.journal import read_journal
from specpilot.core.deployment import Deployment, Drafter
from specpilot.core.errors import JournalError
from specpilot.loop.facts import SpeedFacts
from specpilot.loop.state import RunState, fold

ASSUMED_TOKENS_PER_SECOND = {"cpu": 40.0, "cuda": 150.0}
"""Of one request, until a run has measured it."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Stock's rate for one deployment, and how it is known.

    Attributes:
        tokens_per_second: of one request alone, or of several together that take turns.
        source: for people, such as `measured in runs/demo`.
        noise: A/A noise of the run that measured it; None where none did.
    """

    tokens_per_second: float
    source: str
    noise: float | None = None


def known_speed(deployment: Deployment, given: float | None = None, runs: Path = RUNS) -> Speed:
    """The user's word, else the latest measurement of an earlier run, else an assumption."""
    if given is not None:
        return Speed(given, "given")
    earlier = _latest(with_absolute_paths(deployment), runs)
    if earlier is not None:
        return earlier
    kind = device_kind(deployment)
    return Speed(
        ASSUMED_TOKENS_PER_SECOND[kind],
        "an assumption: no run of these models on these devices was found here; --rate states it",
    )


def expected_unit(deployment: Deployment) -> float | None:
    """Seconds that a paired run will take; None for engines whose time is simulated."""
    if deployment.engine.kind == "simulated":
        return None
    return paired_run_seconds(deployment, known_speed(deployment).tokens_per_second)


def _latest(deployment: Deployment, runs: Path) -> Speed | None:
    found: tuple[str, Speed] | None = None
    folders = sorted(runs.iterdir()) if runs.is_dir() else []
    for folder in folders:
        if not has_begun(folder):
            continue
        try:
            lines = read_journal(folder / JOURNAL_FILE).lines
        except JournalError:
            # Damaged or unreadable: 'status' says so when that run is asked for.
            continue
        state = fold(line.event() for line in lines)
        if (speed := _speed(state, deployment, folder)) and (not found or lines[0].time > found[0]):
            found = lines[0].time, speed
    return found[1] if found else None


def _same_drafter(one: Drafter, other: Drafter) -> bool:
    # `auto` is what the folder says; one folder holds one drafter.
    kinds = {one.kind, other.kind} - {"auto"}
    return one.model == other.model and len(kinds) < 2


def _speed(state: RunState, deployment: Deployment, folder: Path) -> Speed | None:
    if state.started is None or state.stock_facts is None or state.noise is None:
        return None
    other = state.started.deployment
    alike = (
        other.target == deployment.target
        and _same_drafter(other.drafter, deployment.drafter)
        and other.engine == deployment.engine
        and other.platform.devices == deployment.platform.devices
    )
    if not alike:
        return None
    rate = _alone(state.stock_facts.stock, other.regime.concurrency)
    # Noise belongs to its load: requests that wait for each other spread otherwise.
    noise = state.noise.noise if other.regime == deployment.regime else None
    return Speed(rate, f"measured in {folder}", noise)


def _alone(speed: SpeedFacts, concurrency: tuple[int, ...]) -> float:
    """The rate of one request alone: of several in flight, each got its share of the steps."""
    shares = {f"@{in_flight}": in_flight for in_flight in concurrency}
    logs = []
    for name, rate in speed.tokens_per_second.items():
        # One batch size is not part of the names.
        of_name = name[name.rfind("@") :] if len(concurrency) > 1 else f"@{concurrency[0]}"
        logs.append(math.log(rate * shares[of_name]))
    return math.exp(fmean(logs))

"""Work of others on the cores that a run measures on: how much, whose, and what to do about it."""

import os
import time
from dataclasses import dataclass

import psutil

from specpilot.cli.output import say
from specpilot.core.deployment import Deployment

LOAD_SECONDS = 1.0
ALLOWED_LOAD_PERCENT = 20.0
NAMED = 3
"""Processes that are named."""
_NAMED_PERCENT = 5.0


def threads_beside_the_judge() -> int:
    """CPU threads of a server that leave the judge a core of its own: pairs spread half as much."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


@dataclass(frozen=True, slots=True)
class Load:
    """What others did on the cores during a second.

    Attributes:
        busiest_percent: of the core that was used most.
        free_cores: cores that were left, rounded down; at least one.
        processes: the busiest ones, such as `python (pid 7) 180%`; 100% is one core.
    """

    busiest_percent: float
    free_cores: int
    processes: tuple[str, ...]

    @property
    def disturbs(self) -> bool:
        """Whether it would show in rates."""
        return self.busiest_percent > ALLOWED_LOAD_PERCENT

    def spell(self) -> str:
        """How much, and whose."""
        whose = f" ({', '.join(self.processes)})" if self.processes else ""
        return f"the busiest core is {self.busiest_percent:.0f}% used by other work{whose}"


def measure_load(seconds: float = LOAD_SECONDS) -> Load:
    """Look at cores and processes for some time."""
    psutil.cpu_percent(percpu=True)
    before = {pid: used for pid, (_, used) in _processes().items()}
    started = time.monotonic()
    time.sleep(seconds)
    percents = psutil.cpu_percent(percpu=True)
    passed = time.monotonic() - started
    spent = {
        f"{name} (pid {pid})": 100 * (used - before.get(pid, 0.0)) / passed
        for pid, (name, used) in _processes().items()
    }
    busiest = sorted(spent.items(), key=lambda item: -item[1])[:NAMED]
    named = [f"{name} {share:.0f}%" for name, share in busiest if share >= _NAMED_PERCENT]
    mine = [percents[core] for core in os.sched_getaffinity(0) if core < len(percents)]
    busy = sum(mine) / 100
    return Load(
        busiest_percent=max(mine or percents),
        free_cores=max(int(len(mine) - busy + ALLOWED_LOAD_PERCENT / 100), 1),
        processes=tuple(named),
    )


def advice(load: Load, deployment: Deployment, option: str = "engine.threads =") -> str:
    """What to do about a load, with a number of threads where fewer would help.

    Args:
        option: how a user sets the threads.
    """
    threads = deployment.engine.threads or len(os.sched_getaffinity(0))
    stop = "stop that work: it makes steps slow and verdicts undecided"
    if load.free_cores >= threads:
        return stop
    return f"{stop}; or give servers fewer threads, {option} {load.free_cores}"


def note_load(deployment: Deployment, option: str = "engine.threads =") -> None:
    """Say beforehand what will make a run slow and its verdicts undecided."""
    if "cpu" not in deployment.platform.devices or deployment.engine.kind == "simulated":
        return
    load = measure_load()
    if load.disturbs:
        say(f"note: {load.spell()}; {advice(load, deployment, option)}", err=True)


def _processes() -> dict[int, tuple[str, float]]:
    """Name and processor seconds of every process that may be read, by id."""
    found = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None and process.pid != os.getpid():
            found[process.pid] = (str(process.info["name"]), times.user + times.system)
    return found

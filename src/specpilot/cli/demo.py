"""`specpilot demo`: one whole round on a small real model, without a GPU and without a key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.claim import claimed
from specpilot.cli.demo_model import TARGET_FOLDER, find_drafter, prepare_target
from specpilot.cli.isolation import require_isolation
from specpilot.cli.load import note_load, threads_beside_the_judge
from specpilot.cli.models import require_models
from specpilot.cli.optimize import run_and_report
from specpilot.cli.output import Finished, say
from specpilot.cli.runs import (
    DEPLOYMENT_FILE,
    RUNS,
    controller_process,
    create_run,
    is_being_written,
)
from specpilot.core.deployment import BENCHMARKS, Deployment, load_deployment, parse_deployment
from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation

NAME = "demo"


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much is played: the only place where the demo's running time is decided."""

    development: int
    """Requests per benchmark."""
    sealed: int
    """Requests per benchmark."""
    tokens: int
    sealed_tokens: int
    directions: int
    attempts: int
    """Of one direction."""


FULL = DemoSize(development=4, sealed=3, tokens=20, sealed_tokens=48, directions=4, attempts=3)
QUICK = DemoSize(development=2, sealed=2, tokens=12, sealed_tokens=20, directions=1, attempts=1)


def command(
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter requests")] = False,
    run: Annotated[Path, typer.Option(help="run folder")] = RUNS / NAME,
    target: Annotated[Path, typer.Option(help="target; prepared when missing")] = TARGET_FOLDER,
    drafter: Annotated[Path | None, typer.Option(help="drafter; the shipped one if absent")] = None,
    isolation: Annotated[
        Isolation | None, typer.Option(help="how servers are kept apart; the best of this machine")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, help="CPU threads of a server; by default one core less than there are"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="journal lines as JSON")] = False,
) -> None:
    """Optimize SmolLM2-135M-Instruct with a DFlash2 drafter, phases 0 to 4."""
    deployment = demo_deployment(
        QUICK if quick else FULL,
        target=prepare_target(target),
        drafter=find_drafter(drafter),
        isolation=isolation or available_isolation(),
        threads=threads,
    )
    require_models(deployment)
    require_isolation(deployment)
    note_load(deployment, "--threads")
    set_earlier_demo_aside(run)
    with claimed(run, make=True):
        create_run(deployment, run)
        code = run_and_report(run, as_json=as_json)
    raise Finished(code)


def demo_deployment(
    size: DemoSize, *, target: Path, drafter: Path, isolation: Isolation, threads: int | None
) -> Deployment:
    """The deployment that the demo optimizes."""
    return parse_deployment(
        {
            "name": NAME,
            "target": {"model": str(target), "dtype": "bfloat16"},
            "drafter": {"kind": "dflash2", "model": str(drafter)},
            "engine": {
                "kind": "embedded",
                "threads": threads or threads_beside_the_judge(),
            },
            "platform": {"devices": ["cpu"], "isolation": isolation.value},
            "workload": {
                "benchmarks": dict.fromkeys(BENCHMARKS, "builtin"),
                "development": size.development,
                "sealed": size.sealed,
                "passes": 1,
                "max_new_tokens": size.tokens,
                "sealed_max_new_tokens": size.sealed_tokens,
            },
            "agent": {"kind": "playbook", "max_directions": size.directions},
            "budget": {"max_rounds": 1, "max_attempts_per_direction": size.attempts},
        },
        where="demo",
    )


def available_isolation() -> Isolation:
    """Namespaces where this machine gives them; otherwise none, said aloud and recorded."""
    from specpilot.sandbox.probe import probe

    missing = probe().unavailable
    if Isolation.NAMESPACES not in missing:
        return Isolation.NAMESPACES
    say(
        f"note: no isolation here ({missing[Isolation.NAMESPACES]}); the sealed final will refuse "
        "to confirm a result. Install bubblewrap and allow user namespaces for a confirmed one.",
        err=True,
    )
    return Isolation.NONE


def set_earlier_demo_aside(folder: Path) -> None:
    """Make room for a new demo: an earlier one is kept beside it, under the next free number.

    Raises:
        Refused: the folder holds something else, or a demo that is still running.
    """
    if not folder.exists():
        return
    with claimed(folder):
        _move_aside(folder)


def _move_aside(folder: Path) -> None:
    path = folder / DEPLOYMENT_FILE
    if not path.is_file() or not _is_demo(load_deployment(path)):
        raise Refused("is not an earlier demo", where=str(folder), fix="give another --run")
    alive = controller_process(folder)
    if alive is not None:
        raise Refused(
            f"is being worked on by process {alive.pid}",
            where=str(folder),
            fix=f"end it with 'specpilot stop {folder}'",
        )
    if is_being_written(folder):
        raise Refused("is starting", where=str(folder), fix="wait for it, or give another --run")
    number = 1
    while (kept := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    folder.rename(kept)
    say(f"note: the earlier demo is kept as {kept}", err=True)


def _is_demo(deployment: Deployment) -> bool:
    """A user's own run may be called `demo` too."""
    built_in = deployment.workload.benchmarks == dict.fromkeys(BENCHMARKS, "builtin")
    return deployment.name == NAME and built_in and deployment.agent.kind == "playbook"

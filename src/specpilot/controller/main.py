"""Opening a run folder and driving it to its end, or to where it can be resumed from."""

import asyncio
import os
import signal
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from specpilot.controller.journal import Journal
from specpilot.core.deployment import Deployment, load_deployment
from specpilot.core.errors import ExitCode, Refused, SpecPilotError, of_system
from specpilot.core.record import content_hash
from specpilot.loop.driver import drive
from specpilot.loop.events import ControllerStarted, LeaseReleased, Noticed, RunStarted
from specpilot.loop.facts import Outcome
from specpilot.loop.parts import build_parts
from specpilot.loop.run import Parts, Run

EXIT_CODES = {
    Outcome.PROMOTED: ExitCode.OK,
    Outcome.NOTHING_PROMOTED: ExitCode.NOTHING_PROMOTED,
    Outcome.VOID: ExitCode.VOID,
    Outcome.BUDGET_SPENT: ExitCode.BUDGET_SPENT,
    Outcome.REFUSED: ExitCode.REFUSED,
    Outcome.STOPPED: ExitCode.ERROR,
}


def run_controller(folder: Path, parts: Parts | None = None) -> ExitCode:
    """Drive the run in `folder` from wherever its journal stands.

    Args:
        parts: what the run is assembled from; built from the deployment when None.

    Raises:
        SpecPilotError: the run cannot go on now; what was journaled is kept.
    """
    return asyncio.run(_supervised(folder, parts))


def main(folder: Path, parts: Parts | None = None) -> int:
    """`run_controller` for a process: one line on standard error, an exit code."""
    try:
        return int(run_controller(folder, parts))
    except SpecPilotError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    except OSError as error:
        failure = of_system(error, where=str(folder))
        sys.stderr.write(f"{failure}\n")
        return int(failure.exit_code)
    except asyncio.CancelledError:
        sys.stderr.write(f"{folder}: stopped; continue with 'specpilot resume'\n")
        return int(ExitCode.ERROR)


async def _supervised(folder: Path, parts: Parts | None) -> ExitCode:
    """End agents and servers before the process ends, when it is asked to end."""
    task = asyncio.ensure_future(_run(folder, parts))

    def end() -> None:
        # A second request, such as the kernel's when the parent is gone too, would cancel the end.
        if not task.cancelling():
            task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    return await task


async def _run(folder: Path, parts: Parts | None) -> ExitCode:
    folder = folder.absolute()  # commands of other programs run from other folders
    deployment = load_deployment(folder / "deployment.toml")
    journal = Journal(folder / "journal.jsonl")
    try:
        run = Run.open(folder, deployment, journal, parts or build_parts(deployment, folder))
        await _open(run)
        await drive(run)
    finally:
        journal.close()
    finished = run.state.finished
    if finished is None:
        raise ValueError("the plan asked for nothing before the run was finished")
    return EXIT_CODES[finished.outcome]


async def _open(run: Run) -> None:
    """Journal the start or the resumption; settle what a killed controller left open."""
    resumed = run.state.started is not None
    if run.state.started is None:
        run.emit(
            RunStarted(
                deployment=run.deployment,
                deployment_hash=content_hash(run.deployment),
                identity=await run.parts.adapter.identity(),
                isolation=run.isolation,
                version=version("specpilot"),
            )
        )
    else:
        check_same_deployment(run.state.started.deployment, run.deployment, run.folder)
    if run.state.finished is not None and run.state.limits == run.deployment.budget:
        return
    _settle_leases(run)
    run.emit(ControllerStarted(pid=os.getpid(), resumed=resumed, budget=run.deployment.budget))
    if run.journal.reading.torn:
        run.emit(Noticed(message="a cut-off last line was dropped; its work is done again"))


def check_same_deployment(locked: Deployment, now: Deployment, folder: Path) -> None:
    """A resumed run may have another budget and nothing else.

    Raises:
        Refused: another key changed.
    """
    if locked.model_copy(update={"budget": now.budget}) != now:
        changed = [
            name
            for name in type(locked).model_fields
            if name != "budget" and getattr(locked, name) != getattr(now, name)
        ]
        raise Refused(
            f"changed since the run started ({', '.join(changed)})",
            where=str(folder / "deployment.toml"),
            fix="put it back, or start a new run; only the budget may change",
        )


def _settle_leases(run: Run) -> None:
    """Devices held by a killed controller count up to the last line it wrote."""
    if not run.state.leases:
        return
    taken: dict[str, str] = {}
    for line in run.journal.reading.lines:
        if line.kind == "lease_taken":
            taken[str(line.data["device"])] = line.time
    last = datetime.fromisoformat(run.journal.reading.lines[-1].time)
    for device, lease in sorted(run.state.leases.items()):
        seconds = (last - datetime.fromisoformat(taken[device])).total_seconds()
        run.emit(LeaseReleased(device=device, holder=lease.holder, seconds=max(seconds, 0.0)))

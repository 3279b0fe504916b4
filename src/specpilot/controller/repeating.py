"""Measures once more what failed through no fault of the candidate.

When a server that is not under test fails, everything is measured again on fresh servers. When one
fails again, the system that the candidate is held against is started alone: failing there too, it
ends the run with an error that `resume` repeats; working alone, it was the candidate beside it that
broke it, for instance by taking the memory of the device.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from specpilot.controller.attribution import InfrastructureFailure, attributed
from specpilot.controller.outcomes import require_answers
from specpilot.controller.servers import play_once, serving
from specpilot.core.errors import EngineFailure
from specpilot.core.system import System
from specpilot.loop.events import Noticed
from specpilot.loop.run import Run

Found = TypeVar("Found")
_PLAYED_ALONE = 2


async def repeated(
    run: Run,
    devices: tuple[str, ...],
    beside: System,
    what: str,
    measure: Callable[[], Awaitable[Found]],
) -> Found:
    """What `measure` finds, at the second try if need be.

    Args:
        devices: leased by the caller.
        beside: the system that the candidate is held against.
        what: names the measurement in the journal.

    Raises:
        InfrastructureFailure: `beside` fails without the candidate as well.
        EngineFailure: the candidate failed, or `beside` fails only next to it.
    """
    try:
        return await measure()
    except InfrastructureFailure as failure:
        run.emit(Noticed(message=f"{what} is measured again: {failure}"))
    try:
        return await measure()
    except InfrastructureFailure as failure:
        await works_alone(run, devices, beside)
        raise EngineFailure(
            f"what it is held against failed twice beside it and not alone ({failure.what})",
            where=what,
            fix="use less of the device's memory",
        ) from failure


async def works_alone(run: Run, devices: tuple[str, ...], system: System) -> None:
    """Play a little with nothing beside it.

    Raises:
        InfrastructureFailure: it fails all the same.
    """
    requests = run.development[:_PLAYED_ALONE]
    with attributed(trusted=True):
        async with serving(run.arena(devices), run.systems.export(system), requests) as server:
            played = [await play_once(server, request) for request in requests]
        require_answers(
            played, where=f"system {system.tree_hash[:12]}", fix="see its log in the run folder"
        )

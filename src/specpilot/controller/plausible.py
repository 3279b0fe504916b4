"""What an engine says of itself, refused where no engine could mean it.

None of it decides a verdict, but it is added up, journaled and shown: a number of four hundred
digits must end the system that said it, not the controller.
"""

from collections.abc import Iterable, Mapping, Sequence

from specpilot.controller.outcomes import Tampered
from specpilot.core.measurement import Counters, Profile
from specpilot.core.requests import Request
from specpilot.engines.base import RunningEngine
from specpilot.sandbox.foreign import one_line

_LARGEST_COUNT = 10**12
_LONGEST_TOTAL_SECONDS = 1e9
_STEP_SECONDS = (1e-9, 1e6)
"""No step is shorter than a clock's tick, and no request waits for one of days."""
_MOST_NAMES = 256
_LONGEST_NAME = 100


async def counters_of(server: RunningEngine) -> Counters:
    """The server's counts since the last flush.

    Raises:
        EngineFailure: the server failed.
        Tampered: a count or a name that no engine has.
    """
    found = await server.counters()
    counts = [found.steps, found.emitted_tokens, found.drafted_tokens, found.verified_rows]
    for named in (found.activations, found.events):
        _check_names("/counters", named)
        counts += named.values()
    _check_names("/counters", found.seconds)
    if max(counts) > _LARGEST_COUNT:
        raise _absurd("/counters", f"a count above {_LARGEST_COUNT:.0e}")
    if any(seconds > _LONGEST_TOTAL_SECONDS for seconds in found.seconds.values()):
        raise _absurd("/counters", f"more than {_LONGEST_TOTAL_SECONDS:.0e} seconds")
    return found


async def profile_of(server: RunningEngine, request: Request) -> Profile:
    """Seconds per step by kernel class.

    Raises:
        EngineFailure: the server failed.
        Tampered: times that no step takes.
    """
    found = await server.profile(request)
    _check_steps("/profile", (found.seconds_per_step, sum(found.by_class.values())))
    return found


async def step_times_of(
    server: RunningEngine, request: Request, positions: int, nodes: Sequence[int]
) -> dict[int, float]:
    """Seconds per step with a best-first tree of each size.

    Raises:
        EngineFailure: the server failed, or has no such trees.
        Tampered: times that no step takes.
    """
    found = await server.step_times(request, positions, nodes)
    _check_steps("/step-times", found.values())
    return found


def _check_steps(where: str, times: Iterable[float]) -> None:
    low, high = _STEP_SECONDS
    wrong = [seconds for seconds in times if not low <= seconds <= high]
    if wrong:
        raise _absurd(where, f"a step of {wrong[0]:.3g} seconds")


def _check_names(where: str, named: Mapping[str, object]) -> None:
    if len(named) > _MOST_NAMES:
        raise _absurd(where, f"{len(named)} names")
    wrong = [name for name in named if len(name) > _LONGEST_NAME or not name.isprintable()]
    if wrong:
        raise _absurd(where, f"the name '{one_line(wrong[0], 40)}'")


def _absurd(where: str, what: str) -> Tampered:
    return Tampered(f"says {what}", where=where, fix="the server under test is refused")

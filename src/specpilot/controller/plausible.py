"""What an engine says of itself, refused where no engine could mean it.

None of it decides a verdict, but it is added up, journaled and shown: a number of four hundred
digits must end the system that said it, not the controller.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from specpilot.controller.outcomes import Tampered
from specpilot.core.measurement import Counters, Profile
from specpilot.core.requests import Request
from specpilot.core.system import Checkout
from specpilot.engines.base import RunningEngine
from specpilot.sandbox.foreign import one_line

_LARGEST_COUNT = 10**12
_LONGEST_TOTAL_SECONDS = 1e9
_STEP_SECONDS = (1e-9, 1e6)
"""No step is shorter than a clock's tick, and no request waits for one of days."""
_MOST_NAMES = 32
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_WORD = re.compile(rb"[a-z][a-z0-9_]*")


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
    wrong = [name for name in named if not _NAME.fullmatch(name)]
    if wrong:
        raise _absurd(where, f"the name '{one_line(wrong[0], 40)}'")


def check_declared(counters: Counters, checkout: Checkout) -> None:
    """Refuse names that the system's own files do not hold: they would be a way out for text.

    Raises:
        Tampered: names the first one.
    """
    names = {*counters.activations, *counters.events}
    if unknown := sorted(names - _words(checkout.path)):
        raise _absurd("/counters", f"'{unknown[0]}', which its source does not")


@lru_cache(maxsize=32)
def _words(folder: Path) -> frozenset[str]:
    """Every lower-case word of a system's files; exports do not change."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return frozenset(word.decode() for path in files for word in _WORD.findall(path.read_bytes()))


def coarse(activations: Mapping[str, int]) -> dict[str, int]:
    """Counts for an agent: the power of two below, so that they tell whether and no message."""
    return {name: 1 << count.bit_length() >> 1 for name, count in activations.items()}


def _absurd(where: str, what: str) -> Tampered:
    return Tampered(f"says {what}", where=where, fix="the server under test is refused")

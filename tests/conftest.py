"""What holds for every test: property tests are slow on a loaded machine, not wrong."""

import gc
import os

import pytest
from hypothesis import settings

# Tests run side by side, and threads of one product wait for each other by spinning: two processes
# with two threads each on two cores take many times as long. Servers get their threads by option.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

LONGEST = ("test_kills_of_the_real_engine.py", "test_agent_edits_the_engine.py")
"""Minutes of one worker each. Last, they would keep one core while the others have nothing left;
and a worker takes from the end of another's list, which would make their fixtures twice."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, all others in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection() -> None:
    """Modules stay: looking for garbage among them doubles the time that their import takes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is looked for again, but not among what the modules hold."""
    gc.freeze()
    gc.enable()

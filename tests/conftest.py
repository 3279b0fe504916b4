"""What holds for every test: property tests are slow on a loaded machine, not wrong."""

import os

from hypothesis import settings

# Tests run side by side, and threads of one product wait for each other by spinning: two processes
# with two threads each on two cores take many times as long. Servers get their threads by option.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

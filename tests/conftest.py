"""What holds for every test: property tests are slow on a loaded machine, not wrong."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

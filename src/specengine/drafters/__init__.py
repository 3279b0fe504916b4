"""Drafters: models that propose a lattice from the target's hidden states."""

from specengine.drafters.base import Drafter, DrafterState
from specengine.drafters.loading import KINDS, load_drafter

__all__ = ["KINDS", "Drafter", "DrafterState", "load_drafter"]

"""Drafters: models that propose a lattice from the target's hidden states.

Importing this package does not import torch: commands name the kinds before they load one.
"""

from typing import TYPE_CHECKING, Any

from specengine.drafters.records import KINDS

if TYPE_CHECKING:
    from specengine.drafters.base import Drafter, DrafterState
    from specengine.drafters.loading import load_drafter

__all__ = ["KINDS", "Drafter", "DrafterState", "load_drafter"]


def __getattr__(name: str) -> Any:
    if name == "load_drafter":
        from specengine.drafters import loading

        return loading.load_drafter
    if name in ("Drafter", "DrafterState"):
        from specengine.drafters import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Target models over Transformers classes, with static caches and tree verification."""

from specengine.models.cache import TargetCache
from specengine.models.loading import load_target
from specengine.models.target import Forward, Target

__all__ = ["Forward", "Target", "TargetCache", "load_target"]

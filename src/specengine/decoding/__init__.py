"""Decoding: options, sessions, the step, and recordings."""

from specengine.decoding.counters import EngineCounters
from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions, load_options
from specengine.decoding.recorder import RecordedOutput
from specengine.decoding.scoring import ScoreArrays
from specengine.decoding.session import Session

__all__ = [
    "Engine",
    "EngineCounters",
    "EngineOptions",
    "RecordedOutput",
    "ScoreArrays",
    "Session",
    "load_options",
]

"""Assembling a run from its deployment: which engine, planner, agents and memory."""

from pathlib import Path

from specpilot.core.deployment import Deployment
from specpilot.core.errors import Refused
from specpilot.loop.run import Parts


def build_parts(deployment: Deployment, folder: Path) -> Parts:
    """Everything a run is assembled from."""
    raise Refused(
        f"engine {deployment.engine.kind} has no parts", where=str(folder), fix="install it"
    )

"""Whether this machine can confine what a run starts; asked before anything is written."""

from specpilot.core.deployment import Deployment
from specpilot.core.measurement import Isolation
from specpilot.sandbox.probe import probe


def require_isolation(deployment: Deployment) -> None:
    """Check the level that the deployment asks for by starting a confined process.

    Raises:
        Refused: this machine does not give it; says why and what to do.
    """
    if deployment.platform.isolation is not Isolation.NONE:
        probe().require(deployment.platform.isolation)

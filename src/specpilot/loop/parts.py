"""Assembling a run from its deployment: which engine, requests, sandbox, planner and agents."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specpilot.agents.base import Agent, Brief
from specpilot.core.deployment import Deployment
from specpilot.core.errors import Refused
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.simulated import SimulatedAdapter
from specpilot.engines.target_folder import model_folder
from specpilot.loop.facts import CeilingFacts
from specpilot.loop.run import CeilingInputs, Memory, Parts, Planner
from specpilot.loop.simulated import simulated_ceiling, simulated_split
from specpilot.loop.workspace import workspaces
from specpilot.workload.loading import load_requests


@dataclass(frozen=True, slots=True)
class Explorers:
    """Who plans, who explores, and what is remembered.

    Attributes:
        compute_ceiling: the cost model of real engines.
        readable: folders that agents may read, such as memory entries.
    """

    compute_ceiling: Callable[[CeilingInputs], CeilingFacts]
    plan_directions: Planner
    make_agent: Callable[[Deployment, Brief], Agent]
    memory: Memory
    readable: tuple[Path, ...] = ()


def assemble(deployment: Deployment, folder: Path, explorers: Explorers) -> Parts:
    """The parts of a run in `folder`.

    Raises:
        SpecPilotError: a model is neither a folder nor on the hub.
    """
    simulated = deployment.engine.kind == "simulated"
    return Parts(
        adapter=SimulatedAdapter() if simulated else EmbeddedAdapter(deployment, folder),
        load_requests=(
            simulated_split(deployment)
            if simulated
            else lambda: load_requests(deployment, model_folder(deployment.target.model))
        ),
        compute_ceiling=simulated_ceiling if simulated else explorers.compute_ceiling,
        plan_directions=explorers.plan_directions,
        make_agent=explorers.make_agent,
        make_workspace=workspaces(deployment, folder, explorers.readable),
        memory=explorers.memory,
    )


def build_parts(deployment: Deployment, folder: Path) -> Parts:
    """The parts that the deployment names."""
    raise Refused(
        f"agent kind '{deployment.agent.kind}' is not installed",
        where=str(folder / "deployment.toml"),
        fix="call run_controller with parts from assemble()",
    )

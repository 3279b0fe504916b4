"""Assembling a run from its deployment: which engine, requests, sandbox, planner and agents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from specpilot.agents.base import Agent, Brief
from specpilot.agents.factory import make_agent
from specpilot.agents.planner import plan_directions, scripted_planner
from specpilot.agents.scripted import load_script
from specpilot.core.deployment import Deployment
from specpilot.costmodel.measured import ceiling_of
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.simulated import SimulatedAdapter
from specpilot.engines.target_folder import model_folder
from specpilot.loop.facts import CeilingFacts
from specpilot.loop.run import CeilingInputs, Memory, Parts, Planner
from specpilot.loop.simulated import simulated_ceiling, simulated_split
from specpilot.loop.workspace import workspaces
from specpilot.memory.registry import Registry
from specpilot.memory.run_memory import RunMemory
from specpilot.workload.chat import ChatTokenizer
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
            else lambda secret: load_requests(
                deployment, model_folder(deployment.target.model), secret
            )
        ),
        compute_ceiling=simulated_ceiling if simulated else explorers.compute_ceiling,
        plan_directions=explorers.plan_directions,
        make_agent=explorers.make_agent,
        make_workspace=workspaces(deployment, folder, explorers.readable),
        memory=explorers.memory,
        decode=(lambda _: "") if simulated else _decoder(deployment),
    )


def _decoder(deployment: Deployment) -> Callable[[Sequence[int]], str]:
    """The target's own tokenizer, read when it is needed first."""

    @lru_cache(maxsize=1)
    def tokenizer() -> ChatTokenizer:
        return ChatTokenizer(model_folder(deployment.target.model))

    return lambda ids: tokenizer().decode(ids)


def build_parts(deployment: Deployment, folder: Path) -> Parts:
    """The parts that the deployment names; memory lies beside the run folders.

    Raises:
        SpecPilotError: a model, a script or an agent's program is missing.
    """
    registry = Registry(folder.absolute().parent / "memory")
    script = deployment.agent.script
    return assemble(
        deployment,
        folder,
        Explorers(
            compute_ceiling=(
                simulated_ceiling
                if deployment.engine.kind == "simulated"
                else ceiling_of(deployment)
            ),
            plan_directions=scripted_planner(load_script(Path(script)))
            if script is not None
            else plan_directions,
            make_agent=make_agent,
            memory=RunMemory(registry, deployment),
            readable=(registry.folder,),
        ),
    )

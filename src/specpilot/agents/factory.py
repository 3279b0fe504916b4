"""Choosing the agent and the planner that a deployment names."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from specpilot.agents.base import Agent, AgentLimits, Brief, Workspace
from specpilot.agents.command import command_agent, preset_agent
from specpilot.agents.runner import SubprocessAgent
from specpilot.agents.scripted import load_script
from specpilot.agents.streams import EventLines
from specpilot.core.deployment import Deployment


def make_agent(deployment: Deployment, brief: Brief) -> Agent:
    """A fresh agent for one direction."""
    choice = deployment.agent
    if choice.kind == "command":
        return preset_agent(choice.preset) if choice.preset else command_agent(choice.command)
    if choice.kind == "scripted" and choice.script is not None:
        return scripted_agent(Path(choice.script), brief.direction_id)
    return playbook_agent()


def playbook_agent() -> SubprocessAgent:
    """The built-in agent."""

    def line(brief: Brief, workspace: Workspace, limits: AgentLimits) -> Sequence[str]:
        return (sys.executable, "-P", "-m", "specpilot.agents.playbook")

    return SubprocessAgent("playbook", line, EventLines, costs_money=False)


def scripted_agent(script: Path, direction: str) -> SubprocessAgent:
    """Fixed edits. The script is copied to where the confined agent can read it."""

    def line(brief: Brief, workspace: Workspace, limits: AgentLimits) -> Sequence[str]:
        folder = workspace.state / "script"
        folder.mkdir(exist_ok=True)
        for item in load_script(script).direction:
            for step in item.step:
                if step.patch is not None:
                    shutil.copyfile(script.parent / step.patch, folder / step.patch)
        copy = folder / "script.toml"
        shutil.copyfile(script, copy)
        # The agent may have an account of its own.
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        module = ("-P", "-m", "specpilot.agents.scripted")
        return (sys.executable, *module, str(copy), direction)

    return SubprocessAgent("scripted", line, EventLines, costs_money=False)

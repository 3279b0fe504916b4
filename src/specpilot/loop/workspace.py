"""Where an agent runs: its worktree, its own socket, and nothing else of the run."""

from collections.abc import Callable
from pathlib import Path

from specpilot.agents.base import Workspace
from specpilot.core.deployment import Deployment
from specpilot.sandbox.agent import confine_agent

HIDDEN = ("journal.jsonl", "records", "recordings", "repo", "sealed", "exports", "logs")
"""Parts of a run folder that no agent may see."""


def workspaces(
    deployment: Deployment, run_folder: Path, readable: tuple[Path, ...] = ()
) -> Callable[[Path, Path, Path], Workspace]:
    """A maker of workspaces from worktree, state folder and socket.

    Args:
        readable: further folders that agents may read, such as memory entries.
    """
    hidden = tuple(run_folder.absolute() / name for name in HIDDEN)

    def make(worktree: Path, state: Path, socket: Path) -> Workspace:
        worktree, state = worktree.absolute(), state.absolute()
        confined = confine_agent(
            worktree,
            state,
            socket,
            deployment.platform.isolation,
            hidden=hidden,
            read_only=[folder.absolute() for folder in readable if folder.is_dir()],
            # A language model is reached over the network; the built-in agents need none.
            network=deployment.agent.kind == "command",
        )
        return Workspace(worktree, state, socket, confined.prefix, confined.environment)

    return make

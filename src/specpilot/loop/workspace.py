"""Where an agent runs: its worktree, its own socket, and nothing else of the run."""

from collections.abc import Callable
from pathlib import Path

import specpilot
from specpilot.agents.base import BRIEF_VARIABLE, SOCKET_VARIABLE, Workspace
from specpilot.core.deployment import Deployment
from specpilot.core.measurement import Isolation
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.policy import (
    HOME,
    Bind,
    Policy,
    Role,
    bwrap_arguments,
    check_policy,
    interpreter_binds,
)

HIDDEN = ("journal.jsonl", "records", "recordings", "repo", "sealed", "exports", "logs")
"""Parts of a run folder that no agent may see."""


def workspaces(
    deployment: Deployment, run_folder: Path, memory_folder: Path | None
) -> Callable[[Path, Path, Path], Workspace]:
    """A maker of workspaces from worktree, state folder and socket.

    Args:
        memory_folder: entries that agents may read; None when there are none.
    """
    plain = deployment.platform.isolation is Isolation.NONE

    def make(worktree: Path, state: Path, socket: Path) -> Workspace:
        worktree, state = worktree.absolute(), state.absolute()
        home = state / "home" if plain else Path(HOME)
        temporary = state / "tmp" if plain else Path("/tmp")
        if plain:
            home.mkdir(exist_ok=True)
            temporary.mkdir(exist_ok=True)
        environment = base_environment(home, temporary)
        if plain:
            return Workspace(worktree, state, socket, environment=environment)
        policy = Policy(
            role=Role.AGENT,
            read_only=(*interpreter_binds(), *_judge_binds(), *_memory(memory_folder)),
            writable=(Bind(worktree), Bind(state), Bind(socket)),
            environment=environment
            | {SOCKET_VARIABLE: str(socket), BRIEF_VARIABLE: str(state / "brief.json")},
            working_folder=worktree,
            # A language model is reached over the network; the built-in agents need none.
            network=deployment.agent.kind == "command",
            hidden=tuple(run_folder.absolute() / name for name in HIDDEN),
        )
        check_policy(policy)
        prefix = bwrap_arguments(policy, ())
        return Workspace(worktree, state, socket, prefix, environment)

    return make


def _judge_binds() -> tuple[Bind, ...]:
    """The package with `specpilot ctl`, where it is not part of the interpreter's folder."""
    return (Bind(Path(specpilot.__file__).parent),)


def _memory(folder: Path | None) -> tuple[Bind, ...]:
    return () if folder is None or not folder.is_dir() else (Bind(folder.absolute()),)

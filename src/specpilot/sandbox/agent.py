"""Confines an agent: it writes to its worktree alone, reads its brief, and sees nothing of the run.

The result is a command prefix and an environment, since agents are started by their own runner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specpilot.core.measurement import Isolation
from specpilot.sandbox.accounts import account_of, hand_over
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.policy import (
    HOME,
    Bind,
    Policy,
    Role,
    bwrap_arguments,
    check_policy,
    interpreter_binds,
    package_binds,
    without_prompts,
)


@dataclass(frozen=True, slots=True)
class Confinement:
    """How to start an agent.

    Attributes:
        prefix: goes before the agent's command; empty when it is not confined.
        environment: the whole environment, before what the runner adds.
    """

    prefix: tuple[str, ...]
    environment: dict[str, str]


def confine_agent(
    worktree: Path,
    state: Path,
    socket: Path,
    isolation: Isolation,
    *,
    hidden: Sequence[Path],
    read_only: Sequence[Path] = (),
    network: bool = False,
) -> Confinement:
    """The prefix and environment of one direction's agent.

    Args:
        worktree: what the agent may edit.
        state: folder of its brief and log, which it reads only, unless it is not confined.
        socket: its controller socket; it must exist, because it alone is bound, not its folder.
        hidden: paths that must stay invisible: journal, records, recordings, sealed requests, the
            run's repository, other worktrees.
        read_only: further paths, such as memory entries or an agent program's installation.
        network: whether it must reach a model provider.

    Raises:
        Refused: a bind would show a hidden path, or the level is not available.
        SpecPilotError: a path is missing.
    """
    if isolation is Isolation.NONE:
        home = state / "home"
        home.mkdir(parents=True, exist_ok=True)
        return Confinement((), base_environment(home, home))
    policy = Policy(
        role=Role.AGENT,
        read_only=(
            *interpreter_binds(),
            *package_binds(),
            *without_prompts(state),
            Bind(state),
            *map(Bind, read_only),
        ),
        writable=(Bind(worktree), Bind(socket)),
        # The runner adds the brief and the socket to the environment that bubblewrap is started
        # with.
        environment=None,
        working_folder=worktree,
        network=network,
        hidden=tuple(hidden),
    )
    check_policy(policy)
    identity = None
    if isolation is Isolation.STRICT:
        account = account_of(Role.AGENT)
        hand_over(policy, account)
        identity = (account.uid, account.gid)
    prefix = bwrap_arguments(policy, (), identity=identity)
    return Confinement(prefix, base_environment(Path(HOME), Path("/tmp")))

"""What the controller needs of an agent, and what an agent is told.

An agent gets a brief, a worktree and limits. It never gets the journal, the sealed requests, the
devices or the clocks.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from pydantic import Field

from specpilot.agents.events import AgentEvent
from specpilot.core.numbers import Finite, NonNegative, Positive
from specpilot.core.record import Record
from specpilot.core.system import CommitId, OptionValue

SOCKET_VARIABLE = "SPECPILOT_SOCKET"
"""Environment variable that holds the path of the direction's control socket."""
BRIEF_VARIABLE = "SPECPILOT_BRIEF"
"""Environment variable that holds the path of the brief (JSON)."""


class Operation(StrEnum):
    """What `specpilot ctl` may be asked for."""

    HEADROOM = "headroom"
    CHECK = "check"
    FORCE = "force"
    TIME = "time"
    SUBMIT = "submit"
    CLOSE = "close"


class AgentLimits(Record):
    """When an agent is ended, whatever it is doing."""

    deadline_seconds: Positive = 3600.0
    first_event_seconds: Positive = 300.0
    """Programs that hang at start are ended early and started once more."""
    grace_seconds: Positive = 5.0
    """Time to exit after its final event, and after being asked to stop."""
    max_usd: NonNegative | None = None
    """None: no money limit."""


class CatalogueOption(Record):
    """One option of `system.toml`, as the base commit has it."""

    name: str
    value: OptionValue
    explanation: str
    """The comment that precedes it."""


class MemoryOffer(Record):
    """A memory entry that the agent may apply instead of inventing the mechanism again."""

    name: str
    summary: str
    options: dict[str, OptionValue]
    folder: str
    """Read-only folder with `entry.toml`, `delta.patch` and `evidence.json`."""


class Brief(Record):
    """Everything that one direction's agent is told."""

    direction_id: str
    name: str
    mechanism: str
    factor: str
    """The ceiling factor aimed at: `tau`, `kernel` or `overhead`."""
    expected_headroom: Finite | None = None
    """Estimated gain minus 1."""
    base_commit: CommitId
    grid: tuple[dict[str, OptionValue], ...] = ()
    """Option settings worth asking headroom for."""
    catalogue: tuple[CatalogueOption, ...] = ()
    memory: tuple[MemoryOffer, ...] = ()
    ceiling: dict[str, Finite] = Field(default_factory=dict)
    """The factors `tau`, `kernel`, `overhead` of the base and their product `ceiling`."""
    facts: dict[str, Finite] = Field(default_factory=dict)
    """Other measured numbers of the base, by name with unit, such as `seconds_per_step`."""
    operations: tuple[Operation, ...] = tuple(Operation)
    writable_paths: tuple[str, ...] = ("specengine/", "system.toml")
    """Prefixes inside the worktree; a commit that touches another path is refused."""
    minimum_headroom: NonNegative = 0.03
    """A direction with less headroom is closed on its bound (paper section 3.2)."""
    max_attempts: int = 3
    limits: AgentLimits = AgentLimits()


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where an agent runs.

    Attributes:
        worktree: git worktree of the base commit; the agent's working directory.
        state: folder for the brief and the agent's log, outside the worktree.
        socket: Unix socket on which the controller answers this direction.
        prefix: command that confines what follows it, such as a bubblewrap call ending in `--`;
            empty means not confined.
        environment: complete environment of the process, before brief and socket are added.
    """

    worktree: Path
    state: Path
    socket: Path
    prefix: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Agent(Protocol):
    """Explores one direction."""

    name: str
    """Such as `playbook`, or `command:claude`."""

    def start(
        self, brief: Brief, workspace: Workspace, limits: AgentLimits
    ) -> AsyncIterator[AgentEvent]:
        """Run to the end; the last event, and only the last, is a result or an error.

        When the stream ends, no process of the agent is left. A failure of the agent is an error
        event, never an exception.
        """
        ...

    async def stop(self) -> None:
        """End the agent now; its stream closes with an error event of code `stopped`."""
        ...

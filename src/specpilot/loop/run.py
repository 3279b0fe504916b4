"""One open run: its folder, journal, state, devices and parts, and how a fact gets recorded."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specpilot.agents.base import Agent, AgentLimits, Brief, MemoryOffer, Workspace
from specpilot.controller.contamination import Fingerprints
from specpilot.controller.journal import Journal
from specpilot.controller.leases import Leases
from specpilot.controller.progress import PROGRESS_FILE, Progress, WatchedAdapter
from specpilot.controller.servers import Arena
from specpilot.controller.systems import SystemRepository
from specpilot.core.deployment import Deployment
from specpilot.core.errors import DamagedRun
from specpilot.core.measurement import Isolation, Profile
from specpilot.core.record import content_hash, file_hash
from specpilot.core.requests import Request
from specpilot.core.system import System
from specpilot.engines.base import EngineAdapter, Recording
from specpilot.loop.events import Event, RecordRef
from specpilot.loop.facts import CeilingFacts, DirectionPlan, PlanningFacts
from specpilot.loop.state import RunState, apply, fold
from specpilot.workload.private_files import draw_secret, kept_secret
from specpilot.workload.split import Split, load_split


@dataclass(frozen=True, slots=True)
class CeilingInputs:
    """What a ceiling is computed from, all of one system.

    Attributes:
        recordings: lattices and greedy outputs of development requests.
        profiles: one per profiled request.
        tau: tokens per step as played.
        rows: mean verified rows of a step as played, the root included.
        positions: positions that the system's options draft; 0 leaves it to the drafter.
        autoregressive_seconds: one AR step.
        step_seconds: verified rows -> seconds per step with a best-first tree of that size.
        device: where it was measured; decides the byte floors.
        prompt_tokens: mean prompt length of the profiled requests.
    """

    recordings: tuple[Recording, ...]
    profiles: tuple[Profile, ...]
    tau: float
    rows: float
    positions: int
    autoregressive_seconds: float
    step_seconds: dict[int, float]
    device: str
    prompt_tokens: float


class Planner(Protocol):
    """Proposes directions from measured facts."""

    def __call__(
        self, facts: PlanningFacts, memory: Sequence[MemoryOffer], max_directions: int
    ) -> tuple[DirectionPlan, ...]:
        """At most `max_directions` plans with new ids; empty when nothing is worth trying."""


class Memory(Protocol):
    """Entries that earlier runs left, and the admission of new ones."""

    def offers(self, options: Mapping[str, object]) -> tuple[MemoryOffer, ...]:
        """Entries that fit this deployment and are not applied yet."""

    def admit(self, run: "Run", direction: str) -> tuple[str, bool, str]:
        """Entry name, whether it reproduces its source system exactly, and a line of detail."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is assembled from; each is replaceable."""

    adapter: EngineAdapter
    load_requests: Callable[[str], Split]
    """Reads and divides the deployment's requests by the run's secret; called once in its life."""
    compute_ceiling: Callable[[CeilingInputs], CeilingFacts]
    plan_directions: Planner
    make_agent: Callable[[Deployment, Brief], Agent]
    make_workspace: Callable[[Path, Path, Path], Workspace]
    """From worktree, state folder and socket; brings the sandbox."""
    memory: Memory
    decode: Callable[[Sequence[int]], str]
    """Text of token ids; empty where they stand for none."""
    draw_secret: Callable[[], str] = draw_secret
    """Gives the run's secret, once."""


@dataclass(slots=True)
class Run:
    """Everything the loop and the service work on. Only `emit` changes the state."""

    folder: Path
    deployment: Deployment
    journal: Journal
    parts: Parts
    systems: SystemRepository
    leases: Leases
    state: RunState
    requests: Split | None = None
    known: tuple[tuple[tuple[RecordRef, ...], str], Fingerprints] | None = None
    """Fingerprints of what was asked and answered; the records and the best tree of that time."""
    failure: "asyncio.Future[None] | None" = None
    """Fails when work outside an action, such as answering an agent, cannot go on."""
    progress: Progress = field(default_factory=Progress)
    """What a watcher may see of the work; no part of the state."""

    @classmethod
    def open(cls, folder: Path, deployment: Deployment, journal: Journal, parts: Parts) -> "Run":
        """A run on an open journal; the state is the fold of what it holds."""
        state = fold(journal.reading.events())
        run = cls(
            folder=folder,
            deployment=deployment,
            journal=journal,
            parts=parts,
            systems=SystemRepository(folder),
            leases=Leases(deployment.platform.devices, lambda event: run.emit(event)),
            state=state,
            progress=Progress(folder / PROGRESS_FILE),
        )
        run.systems.unlock()
        return run

    def emit(self, event: Event) -> None:
        """Journal an event, then apply it.

        Raises:
            JournalError: nothing was written and nothing changed.
        """
        self.journal.append(event)
        self.state = apply(self.state, event)

    def save(self, name: str, content: Mapping[str, Any]) -> RecordRef:
        """Write details to `records/<name>.json` and return how an event names them."""
        path = self.folder / "records" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
        partial.replace(path)
        return RecordRef(path=f"records/{path.name}", sha256=file_hash(path))

    def load(self, reference: RecordRef) -> dict[str, Any]:
        """Details that `save` wrote; the hash is checked.

        Raises:
            DamagedRun: the file is missing or is not what the journal says.
        """
        path = self.folder / reference.path
        if not path.is_file() or file_hash(path) != reference.sha256:
            raise DamagedRun(
                "is missing or is not the file that the journal names",
                where=str(path),
                fix="restore it from a copy of the run folder, then 'specpilot resume'",
            )
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content

    def fail(self, error: BaseException) -> None:
        """End the loop with an error that no action raised."""
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(error)

    @property
    def isolation(self) -> Isolation:
        """How far servers and agents are kept from the judge."""
        return self.deployment.platform.isolation

    @property
    def pair_devices(self) -> int:
        """Devices of a paired run: two are swapped, one alternates."""
        return min(2, len(self.deployment.platform.devices))

    def arena(self, devices: tuple[str, ...]) -> Arena:
        """Where runs on leased devices are played."""
        return Arena(
            adapter=WatchedAdapter(self.parts.adapter, self.progress),
            devices=devices,
            isolation=self.isolation,
            concurrency=self.deployment.regime.concurrency,
            threads=self.deployment.engine.threads,
            passes=self.deployment.workload.passes,
            progress=self.progress,
        )

    @property
    def development(self) -> tuple[Request, ...]:
        """Development requests; loaded once the workload is split."""
        return self._loaded().development

    @property
    def sealed(self) -> tuple[Request, ...]:
        """Sealed requests; never leave the controller."""
        return self._loaded().sealed

    def _loaded(self) -> Split:
        if self.requests is None:
            split = load_split(self.split_path)
            facts = self.state.split
            if facts is not None:
                split = split.verify(facts.development_hash, facts.sealed_hash)
            self.requests = split
        return self.requests

    @property
    def split_path(self) -> Path:
        """The stored split; readable by the controller's user alone."""
        return self.folder / "sealed" / "split.json"

    @property
    def secret(self) -> str:
        """What the split and the order of requests depend on; known to the controller alone."""
        path, known = self.folder / "sealed" / "secret", self.state.split is not None
        return kept_secret(path, self.parts.draw_secret, known=known)

    def order_seed(self, name: str) -> int:
        """Seed of the order of a measurement's requests: fixed for a run, secret, its own."""
        return int(content_hash([self.secret, "order", name])[:15], 16)

    @property
    def stock(self) -> System:
        """The stock system."""
        if self.state.stock is None:
            raise ValueError("stock is committed before anything is measured")
        return self.state.stock.system

    @property
    def best(self) -> System:
        """The current best system."""
        if self.state.best is None:
            raise ValueError("stock is committed before anything is measured")
        return self.state.best

    @property
    def noise(self) -> float:
        """Half width of the A/A band."""
        if self.state.noise is None:
            raise ValueError("the noise band is measured before anything is timed")
        return self.state.noise.noise

    def agent_limits(self) -> AgentLimits:
        """Deadline and money of one agent start: an equal share of what is left."""
        allowed = self.deployment.budget.max_usd
        share = None
        if allowed is not None:
            left = max(allowed - self.state.spent_usd(), 0.0)
            share = left / self.deployment.agent.max_directions
        return AgentLimits(deadline_seconds=self.deployment.agent.deadline_seconds, max_usd=share)

"""One server of the embedded engine: readiness, identity, calls with causes, the end."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Counters, Profile, TokenScore
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import Recording
from specpilot.engines.client import EngineClient
from specpilot.sandbox.foreign import one_line, spoken
from specpilot.sandbox.process import ConfinedProcess, last_line

Answer = TypeVar("Answer")
MOST_WRITTEN = 16 * 2**20
"""Bytes of a server's log and of its socket folder: a few lines, and one socket."""
_LOOK_SECONDS = 0.5
_ENDING_SECONDS, _ENDING_LOOKS = 1.0, 50
"""How long a server that failed a call may take to end, and how often it is looked at."""


@dataclass(frozen=True, slots=True)
class LaunchFolders:
    """Where one server's files lie on the host.

    Attributes:
        scratch: private folder, removed when the server ends; holds the socket folder.
        log: standard output and error, kept.
    """

    scratch: Path
    log: Path

    @property
    def sockets(self) -> Path:
        """The only folder that the server may write to."""
        return self.scratch / "socket"


class EmbeddedServer:
    """One running server. Calls may overlap, except `stop`."""

    def __init__(
        self, process: ConfinedProcess, client: EngineClient, folders: LaunchFolders
    ) -> None:
        self._process = process
        self._client = client
        self._folders = folders
        self._excess = ""
        self._watch: asyncio.Task[None] | None = None

    @property
    def log(self) -> Path:
        """The server's output, kept after it ends."""
        return self._folders.log

    @property
    def _awake(self) -> EngineClient:
        if self._process.frozen:
            raise ValueError("a frozen server was asked")
        return self._client

    async def ready(self, deadline_seconds: float) -> dict[str, Any]:
        """Wait for the server's health answer.

        Raises:
            EngineFailure: it ended, or the deadline passed.
        """
        self._watch = asyncio.create_task(self._end_when_it_floods())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_seconds
        while True:
            if self._excess or self._process.return_code is not None:
                raise self._ended("before it was ready")
            try:
                health = await self._client.call("GET", "/health")
            except EngineFailure as failure:
                if loop.time() > deadline:
                    raise EngineFailure(
                        f"was not ready within {deadline_seconds:.0f} s "
                        f"(last line: {last_line(self.log) or 'none'})",
                        where=str(self.log),
                        fix="read the log, or raise the deadline",
                    ) from failure
                await asyncio.sleep(0.05)
            else:
                return health

    async def generate(self, request: Request) -> RequestOutcome:
        """Play one request, greedily."""
        outcome = await self._explained(self._awake.generate(request))
        if outcome.finish_reason is not FinishReason.FAILED or not await self._is_ending():
            return outcome
        # A defect of an engine answers its clients before its process ends: the log knows more.
        why = one_line(f"{outcome.error}; {self._ended('at that')}")
        return outcome.model_copy(update={"error": why})

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        """Teacher-force `output` after `prompt`."""
        return await self._explained(self._awake.score(prompt, output, prefill_length))

    async def record(self, request: Request, positions: int) -> Recording:
        """Greedy output of a request with a lattice per output position."""
        return await self._explained(self._awake.record(request, positions))

    async def profile(self, request: Request) -> Profile:
        """Seconds per step by kernel class."""
        return await self._explained(self._awake.profile(request))

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        """Seconds per step with best-first trees of several sizes."""
        return await self._explained(self._awake.step_times(request, positions, nodes))

    async def counters(self) -> Counters:
        """The server's own counts since the last flush."""
        return await self._explained(self._awake.counters())

    async def flush(self) -> None:
        """Empty caches and counters, verified."""
        await self._explained(self._awake.flush())

    async def freeze(self) -> None:
        """Stop every process of the server."""
        await self._explained(self._process.freeze())

    async def thaw(self) -> None:
        """Let every process go on, and look whether one of them ran."""
        await self._explained(self._process.thaw())

    async def stop(self) -> None:
        """End the whole process group and verify that it is gone; harmless when repeated."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        await self._client.close()
        try:
            await self._process.stop()
        finally:
            if self.log.stat().st_size > MOST_WRITTEN:
                os.truncate(self.log, MOST_WRITTEN)
            shutil.rmtree(self._folders.scratch, ignore_errors=True)

    async def _explained(self, call: Awaitable[Answer]) -> Answer:
        try:
            return await call
        except EngineFailure as failure:
            if await self._is_ending():
                raise self._ended(f"during {failure.where}") from failure
            raise

    async def _is_ending(self) -> bool:
        """Whether the process is gone, or goes in a moment: its connections end before it does."""
        for _ in range(_ENDING_LOOKS):
            if self._excess or self._process.return_code is not None:
                return True
            await asyncio.sleep(_ENDING_SECONDS / _ENDING_LOOKS)
        return False

    async def _end_when_it_floods(self) -> None:
        while not self._excess:
            await asyncio.sleep(_LOOK_SECONDS)
            for name, size in (("log", self.log.stat().st_size), ("socket folder", self._held())):
                if size > MOST_WRITTEN:
                    self._excess = f"wrote {size >> 20} MiB into its {name}"
        await self._process.stop(grace_seconds=0)

    def _held(self) -> int:
        """Bytes on the disk below the socket folder; an empty file takes a little too."""
        total = 0
        for place, folders, files in os.walk(self._folders.sockets):
            for name in (*folders, *files):
                # What the server deletes meanwhile is no longer there.
                with suppress(FileNotFoundError):
                    total += 512 * max(Path(place, name).lstat().st_blocks, 1)
                if total > MOST_WRITTEN:
                    return total
        return total

    def _ended(self, when: str) -> EngineFailure:
        if self._excess:
            return EngineFailure(
                f"the server was ended {when}: it {self._excess}",
                where=str(self.log),
                fix=f"keep what a server writes below {MOST_WRITTEN >> 20} MiB",
            )
        line = last_line(self.log) or "it left no message"
        return EngineFailure(
            f"the server ended with code {self._process.return_code} {when}: {line}",
            where=str(self.log),
            fix="read the log",
        )


def check_health(health: Mapping[str, Any], checkout: Checkout) -> None:
    """Compare what a server says of itself with what it was started from.

    Raises:
        EngineFailure: another tree, package folder, arm or options.
    """
    facts = {
        "tree hash": (health.get("tree_hash"), checkout.system.tree_hash),
        "arm": (health.get("autoregressive"), checkout.autoregressive),
        "status": (health.get("status"), "ready"),
    }
    options = health.get("options")
    for name, value in checkout.system.options.items():
        served = options.get(name) if isinstance(options, dict) else None
        facts[f"option {name}"] = (served, value)
    for fact, (served, asked) in facts.items():
        if served != asked or type(served) is not type(asked):
            raise EngineFailure(
                f"serves {fact} {spoken(served)}, asked for {asked!r}",
                where="/health",
                fix="start it from the checkout that the controller exported",
            )
    package = health.get("package")
    if not _lies_in(package, checkout.path):
        raise EngineFailure(
            f"runs the package {spoken(package)}, outside its checkout",
            where="/health",
            fix="remove the other package from the server's path",
        )


def _lies_in(package: object, folder: Path) -> bool:
    try:
        return isinstance(package, str) and Path(package).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        # No path at all: null bytes, halves of surrogate pairs, links in a circle.
        return False

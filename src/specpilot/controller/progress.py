"""What is being measured right now, for whoever watches: one small file that is overwritten.

A hint and never evidence: nothing decides by it, no report shows it, and losing it costs nothing.
It is written between requests, outside every measured time.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from specpilot.core.measurement import Counters, DeviceState, Profile, TokenScore
from specpilot.core.numbers import Count, PositiveInt
from specpilot.core.record import Record
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import Checkout, TreeHash
from specpilot.engines.base import EngineAdapter, Identity, Recording, RunningEngine

PROGRESS_FILE = Path("logs") / "progress.json"
"""Below a run folder; agents see no log."""
WARM_UP_ID = "warm-up/0"
"""The request of a warm-up, which belongs to no pass."""
_INTERVAL_SECONDS = 0.5


class Standing(Record):
    """One look at the work."""

    at: str
    """UTC, ISO 8601."""
    doing: str
    """Such as `plays` or `scores`; its subject is the system."""
    tree_hash: TreeHash
    autoregressive: bool
    in_flight: PositiveInt
    """Requests that it works on at once."""
    played: Count = 0
    """Requests that the arms of this run have finished, all arms together."""
    requests: Count = 0
    """Requests of one pass of one arm; 0 outside runs with passes."""
    arms: Count = 0
    passes: Count = 0
    """Each on fresh servers: one for each order and batch size."""


class Progress:
    """Counts what a run's servers do, and writes it down at most twice a second."""

    def __init__(self, path: Path | None = None) -> None:
        """Where to write; nowhere when None."""
        self._path = path
        self._next = 0.0
        self._played = self._requests = self._arms = self._passes = 0

    def begin(self, arms: int, passes: int, requests: int) -> None:
        """A run with passes starts; `requests` are those of one pass of one arm."""
        self._played, self._requests, self._arms, self._passes = 0, requests, arms, passes

    def end(self) -> None:
        """The run is over: what follows, such as scoring, belongs to no pass."""
        self._played = self._requests = self._arms = self._passes = 0

    def finished_one(self) -> None:
        """An arm finished a request."""
        self._played += 1

    def note(self, doing: str, checkout: Checkout, in_flight: int) -> None:
        """Write what a system does, unless that was done a moment ago."""
        now = time.monotonic()
        if self._path is None or now < self._next:
            return
        self._next = now + _INTERVAL_SECONDS
        standing = Standing(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            doing=doing,
            tree_hash=checkout.system.tree_hash,
            autoregressive=checkout.autoregressive,
            in_flight=in_flight,
            played=self._played,
            requests=self._requests,
            arms=self._arms,
            passes=self._passes,
        )
        partial = self._path.with_suffix(".partial")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(standing.model_dump_json(), encoding="utf-8")
            partial.replace(self._path)
        except OSError:
            # A full disk ends the run where evidence is written, not for a hint.
            self._path = None


def read_standing(run_folder: Path) -> Standing | None:
    """The last look at a run's work; None where there is none that can be read."""
    try:
        text = (run_folder / PROGRESS_FILE).read_text(encoding="utf-8")
        return Standing.model_validate_json(text)
    except (OSError, ValidationError):
        return None


class WatchedAdapter:
    """An adapter whose servers tell a `Progress` what they do; otherwise the adapter itself."""

    def __init__(self, adapter: EngineAdapter, progress: Progress) -> None:
        self._adapter = adapter
        self._progress = progress

    @property
    def stop_ids(self) -> frozenset[int]:
        """See `EngineAdapter.stop_ids`."""
        return self._adapter.stop_ids

    def stock_tree(self) -> Mapping[str, bytes]:
        """See `EngineAdapter.stock_tree`."""
        return self._adapter.stock_tree()

    async def identity(self) -> Identity:
        """See `EngineAdapter.identity`."""
        return await self._adapter.identity()

    async def device_state(self, device: str) -> DeviceState:
        """See `EngineAdapter.device_state`."""
        return await self._adapter.device_state(device)

    async def launch(
        self, checkout: Checkout, device: str, *, threads: int | None = None
    ) -> RunningEngine:
        """See `EngineAdapter.launch`."""
        self._progress.note("starts", checkout, 1)
        server = await self._adapter.launch(checkout, device, threads=threads)
        return WatchedEngine(server, checkout, self._progress)


class WatchedEngine:
    """A server that says what it does before it does it."""

    def __init__(self, server: RunningEngine, checkout: Checkout, progress: Progress) -> None:
        self._server = server
        self._checkout = checkout
        self._progress = progress
        self._in_flight = 0

    async def generate(self, request: Request) -> RequestOutcome:
        """See `RunningEngine.generate`."""
        self._in_flight += 1
        self._say("plays")
        try:
            return await self._server.generate(request)
        finally:
            self._in_flight -= 1
            if request.id != WARM_UP_ID:
                self._progress.finished_one()

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        """See `RunningEngine.score`."""
        self._say("scores outputs")
        return await self._server.score(prompt, output, prefill_length)

    async def record(self, request: Request, positions: int) -> Recording:
        """See `RunningEngine.record`."""
        self._say("records lattices")
        return await self._server.record(request, positions)

    async def profile(self, request: Request) -> Profile:
        """See `RunningEngine.profile`."""
        self._say("is profiled")
        return await self._server.profile(request)

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        """See `RunningEngine.step_times`."""
        self._say("times trees")
        return await self._server.step_times(request, positions, nodes)

    async def counters(self) -> Counters:
        """See `RunningEngine.counters`."""
        return await self._server.counters()

    async def flush(self) -> None:
        """See `RunningEngine.flush`."""
        await self._server.flush()

    async def freeze(self) -> None:
        """See `RunningEngine.freeze`."""
        await self._server.freeze()

    async def thaw(self) -> None:
        """See `RunningEngine.thaw`."""
        await self._server.thaw()

    async def stop(self) -> None:
        """See `RunningEngine.stop`."""
        await self._server.stop()

    def _say(self, doing: str) -> None:
        self._progress.note(doing, self._checkout, max(self._in_flight, 1))

"""What the judge needs of an engine: start a system, play requests, score, record, stop.

Everything about a candidate goes through these two protocols, so that the same round runs on the
embedded engine, on a production engine, and on the simulated engine with known truth. An engine
never decides a number: rates come from the caller's clock and from the returned token ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specpilot.core.measurement import Counters, DeviceState, Profile, TokenScore
from specpilot.core.record import Record
from specpilot.core.requests import Request, RequestOutcome
from specpilot.core.system import Checkout


@dataclass(frozen=True, slots=True)
class Recording:
    """Greedy output of one request with the lattice drafted at every output position.

    Attributes:
        request_id: the request that was recorded.
        tokens: int64 [T], the target's greedy output, the stop token included.
        ids: int64 [n, D, K] with n >= T - 1; `ids[i]` are the candidates drafted with anchor
            `tokens[i]` and everything before it as context.
        edge: float32 [n, D, K, K] in nats, as `specengine.lattice.Lattice.edge`.
    """

    request_id: str
    tokens: NDArray[np.int64]
    ids: NDArray[np.int64]
    edge: NDArray[np.float32]


class Identity(Record):
    """Content hashes of what an engine serves, taken before every run."""

    model_hash: str
    drafter_hash: str
    tokenizer_hash: str


class RunningEngine(Protocol):
    """One started server that answered ready and echoed the tree hash it was started from.

    Asking a frozen server anything but to thaw or stop is the caller's error (`ValueError`).
    """

    async def generate(self, request: Request) -> RequestOutcome:
        """Play one request, greedily. A failed request is an outcome, not an exception.

        Raises:
            EngineFailure: the server vanished, or answered something that is not a completion.
        """

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        """Teacher-force `output` after `prompt`; one score per output token (paper section 3.3).

        Args:
            prefill_length: tokens per forward pass; all in one pass when None.
        """

    async def record(self, request: Request, positions: int) -> Recording:
        """Greedy output of a request with a lattice of `positions` rows per output position."""

    async def profile(self, request: Request) -> Profile:
        """Seconds per step by kernel class while the request is played."""

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        """Seconds per step while the request is played with a best-first tree of each size.

        Raises:
            EngineFailure: the server failed, or the engine has no such trees.
        """

    async def counters(self) -> Counters:
        """The server's own counts since the last flush."""

    async def flush(self) -> None:
        """Empty caches and counters.

        Raises:
            EngineFailure: the server did not confirm, or requests were still running.
        """

    async def freeze(self) -> None:
        """Keep it from computing while a rival plays; harmless when it is frozen already.

        No request may be running. Work that it gave to a GPU before goes on.

        Raises:
            EngineFailure: it is gone, or does not come to rest.
        """

    async def thaw(self) -> None:
        """Let it go on; harmless when it is not frozen.

        Raises:
            EngineFailure: it is gone, or it computed while it was frozen.
        """

    async def stop(self) -> None:
        """End the whole process group, frozen or not, and verify that it is gone.

        Calling it again is harmless.
        """


class EngineAdapter(Protocol):
    """Starts systems of one deployment."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that may end an output, read from the target's own folder."""

    def stock_tree(self) -> Mapping[str, bytes]:
        """The stock system as relative POSIX path -> file bytes, `system.toml` included."""

    async def identity(self) -> Identity:
        """Hashes of the target, the drafter and the tokenizer as they lie on the disk now."""

    async def device_state(self, device: str) -> DeviceState:
        """What the device looks like now: id, clocks, power, temperature, throttling."""

    async def launch(
        self, checkout: Checkout, device: str, *, threads: int | None = None
    ) -> RunningEngine:
        """Start a system from a checkout on a leased device and wait until it is ready.

        Raises:
            EngineFailure: it did not start in time, or runs another tree than it was given.
        """

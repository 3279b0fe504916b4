"""Measurements: one arm of one run over one request set, and pairs of them."""

from enum import StrEnum

from pydantic import Field

from specpilot.core.numbers import Count, Finite, NonNegative, Positive, PositiveInt, TokenId
from specpilot.core.record import Record
from specpilot.core.requests import RequestOutcome
from specpilot.core.system import System


class Isolation(StrEnum):
    """How far servers under test and agents are kept from the judge."""

    STRICT = "strict"
    """Namespaces, separate uids, no network."""
    NAMESPACES = "namespaces"
    """Namespaces and no network, one uid."""
    NONE = "none"
    """Plain processes: allowed by explicit flag only; sealed finals refuse it."""


class Counters(Record):
    """The engine's own counts since the last flush; shown, never decisive for a rate."""

    steps: Count
    emitted_tokens: Count
    drafted_tokens: Count
    verified_rows: Count
    activations: dict[str, Count]
    """How often each mechanism ran."""
    seconds: dict[str, NonNegative]
    """Time by part of the step: prefill, draft, build, verify, commit."""
    events: dict[str, Count] = Field(default_factory=dict)
    """Warnings by kind; `never_accepted`: 50 drafted steps in a row had nothing accepted."""

    @property
    def tau(self) -> float:
        """Tokens emitted per verify step, the bonus included."""
        return self.emitted_tokens / self.steps if self.steps else 0.0


class DeviceState(Record):
    """What the device looked like around a run."""

    device: str
    uuid: str
    clock_mhz: NonNegative | None = None
    power_watts: NonNegative | None = None
    temperature_celsius: Finite | None = None
    throttle_reasons: tuple[str, ...] = ()


class Provenance(Record):
    """Everything a reader needs to judge where a number comes from."""

    model_hash: str
    drafter_hash: str
    tokenizer_hash: str
    request_set_hash: str
    devices: tuple[DeviceState, ...]
    isolation: Isolation
    cache_policy: str
    """Such as `flushed before each block`."""
    client_version: str
    started_at: str
    """UTC, ISO 8601."""


class Measurement(Record):
    """One arm: every request has exactly one outcome per pass."""

    arm: str
    system: System
    autoregressive: bool
    passes: tuple[tuple[RequestOutcome, ...], ...]
    """One tuple of outcomes per pass over the request set, in the order played."""
    counters: Counters
    tau_per_benchmark: dict[str, NonNegative] = Field(default_factory=dict)
    """By the engine's counts around each request; empty where requests overlapped."""
    provenance: Provenance


class PairedRun(Record):
    """Two arms over the same requests: swapped devices, or alternating A B B A on one."""

    id: str
    order: str
    """`ABBA` on one device, `swap` on two."""
    baseline: Measurement
    candidate: Measurement


class TokenScore(Record):
    """The scorer's view of one emitted token (teacher-forced, FP32 head)."""

    token: TokenId
    argmax: TokenId
    margin_nats: NonNegative
    """log p(argmax) - log p(token); 0 when they agree."""


class OutputScore(Record):
    """All tokens of one output, the stop decision included."""

    request_id: str
    tokens: tuple[TokenScore, ...]


class KernelClass(StrEnum):
    """Classes of the cost model (paper section 3.1)."""

    TARGET_GEMM = "target_gemm"
    RECURRENT = "recurrent"
    ATTENTION = "attention"
    DRAFTER = "drafter"
    PREFILL = "prefill"
    REST = "rest"


class Profile(Record):
    """Seconds per decoding step by kernel class, from the engine's profiler."""

    steps: PositiveInt
    seconds_per_step: Positive
    """Measured in the same generation, profiler off."""
    by_class: dict[KernelClass, NonNegative]
    """Profiled seconds per step; their sum is T_prof."""

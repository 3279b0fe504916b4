"""Facts that events carry: ceilings, speeds, forcing results, plans. Numbers with their units."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from specpilot.agents.base import CatalogueOption
from specpilot.core.measurement import KernelClass
from specpilot.core.numbers import Count, Finite, NonNegative, Positive, PositiveInt, Share
from specpilot.core.record import Record
from specpilot.core.system import OptionValue


class Factor(StrEnum):
    """What a ceiling is made of (paper section 3.1), and what lies outside it."""

    TAU = "tau"
    KERNEL = "kernel"
    OVERHEAD = "overhead"
    ASSUMPTION = "assumption"
    """One exact pass per draft: mechanisms that the ceiling does not see."""
    BATCHING = "batching"


class CeilingFacts(Record):
    """The three factors of a starting system and what they were computed from."""

    tau_factor: Positive
    kernel_factor: Positive
    overhead_factor: Positive
    ceiling: Positive
    """Product of the three."""
    largest: Factor
    tau: Positive
    tau_best: Positive
    best_nodes: PositiveInt
    """Node budget of tau_best, the root included."""
    seconds_per_step: Positive
    profiled_seconds: Positive
    floor_seconds: Positive
    autoregressive_seconds: Positive
    """T_AR: one autoregressive step on the same engine."""
    by_class: dict[KernelClass, NonNegative] = Field(default_factory=dict)
    """Profiled seconds per step."""
    floor_by_class: dict[KernelClass, NonNegative] = Field(default_factory=dict)
    curve: tuple[tuple[PositiveInt, Positive, Positive], ...] = ()
    """(N, tau(N) by exact replay of the best-first tree, S(N) = tau(N) / c(N))."""
    chain_curve: tuple[tuple[PositiveInt, Positive], ...] = ()
    """(N, tau(N)) of the chain."""
    tree_temperature: Positive = 1.0
    """At which best-first trees took the fewest steps over the recordings; 1 where none helped."""
    tempered_curve: tuple[tuple[PositiveInt, Positive, Positive], ...] = ()
    """As `curve`, at that temperature; empty at 1."""


class SpeedFacts(Record):
    """How fast one arm was, by the controller's clock and the returned token ids."""

    tokens_per_second: dict[str, Positive]
    """Geometric mean of per-request output rates, per benchmark."""
    overall_tokens_per_second: Positive
    """Equal-weight geometric mean over benchmarks."""
    tau: NonNegative
    """Tokens emitted per verify step, by the engine's own counters; shown, never decisive."""
    tau_per_benchmark: dict[str, NonNegative] = Field(default_factory=dict)
    output_tokens: Count
    requests: Count


class ForcingFacts(Record):
    """Result of token forcing (paper section 3.3)."""

    accepted: bool
    reasons: tuple[str, ...] = ()
    """Rules that rejected: `rate`, `events`, `early_end`, `failed_requests`, `too_little`."""
    tokens: Count
    mismatches: Count
    mismatch_rate: Share
    stock_mismatch_rate: Share
    rate_difference_low: Finite = 0.0
    rate_difference_high: Finite = 0.0
    """95% interval of the rate minus stock's, clustered by request."""
    delta_nats: NonNegative
    large_margin_events: Count
    """Mismatches with a margin above 2 delta."""
    unexplained: Count
    """Large-margin events that the audit did not explain."""
    early_ends: Count = 0
    """Outputs that ended by neither a scored stop nor their limit."""
    stock_events: Count = 0
    stock_tokens: Count = 0
    detail: str = ""


class DirectionKind(StrEnum):
    """Which phase opened a direction."""

    EXPLORATION = "exploration"
    INTEGRATION = "integration"
    TUNING = "tuning"


class DirectionPlan(Record):
    """One idea, as the planner proposes it."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Unique in the run; names the worktree, the socket and the branch."""
    name: str
    kind: DirectionKind = DirectionKind.EXPLORATION
    mechanism: str
    """Such as `best_first_tree`; equal mechanisms in two rounds are the same idea."""
    factor: Factor
    idea: str
    """What to edit, in a sentence or two."""
    grid: tuple[dict[str, OptionValue], ...] = ()
    """Option settings worth asking headroom for."""
    expected_headroom: Finite | None = None
    """Estimated gain minus 1."""
    memory_entry: str | None = None
    """Entry that it reuses; such a direction never counts as a discovery."""


class DirectionHistory(Record):
    """What became of an earlier direction, so that no round repeats it unknowingly."""

    id: str
    round: PositiveInt
    mechanism: str
    reason: str
    headroom: Finite | None = None
    promoted: bool
    same_base: bool
    """Whether it started from what is the best now."""


class PlanningFacts(Record):
    """All that a planner may know: measured facts of the current best, never sealed requests."""

    round: PositiveInt
    phase: Literal[1, 3]
    """1 explores; 3 tunes the options of what was promoted."""
    ceiling: CeilingFacts
    noise: NonNegative
    catalogue: tuple[CatalogueOption, ...]
    """Options of the current best's `system.toml`."""
    promoted_options: tuple[str, ...] = ()
    """Options whose value differs from stock's."""
    history: tuple[DirectionHistory, ...] = ()
    device_kind: Literal["cpu", "cuda"] = "cpu"
    concurrency: tuple[PositiveInt, ...] = (1,)


class Outcome(StrEnum):
    """How a run ended; decides the exit code."""

    PROMOTED = "promoted"
    NOTHING_PROMOTED = "nothing_promoted"
    VOID = "void"
    BUDGET_SPENT = "budget_spent"
    REFUSED = "refused"
    STOPPED = "stopped"

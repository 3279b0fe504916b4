"""Everything a journal can say, as one discriminated union of frozen records.

Every table, budget, report and resume point is a fold of these events; nothing else is state. An
event states a fact that has happened; what to do next is derived (`specpilot.loop.plan`). Details
too long for a line live in `records/` and are named with their hash.
"""

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from specpilot.core.deployment import Budget, Deployment
from specpilot.core.measurement import Isolation
from specpilot.core.numbers import Count, Finite, NonNegative, Positive, PositiveInt, Share
from specpilot.core.record import Record
from specpilot.core.system import CommitId, System
from specpilot.core.verdict import Gain, Reason, Verdict
from specpilot.engines.base import Identity
from specpilot.loop.facts import CeilingFacts, DirectionPlan, ForcingFacts, Outcome, SpeedFacts


class RecordRef(Record):
    """A file of the run folder that holds an event's details."""

    path: str
    """Relative to the run folder, such as `records/run-0003.json`."""
    sha256: str


class RunStarted(Record):
    """First event of every journal: what the run is about, locked."""

    kind: Literal["run_started"] = "run_started"
    deployment: Deployment
    deployment_hash: str
    identity: Identity
    isolation: Isolation
    version: str


class ControllerStarted(Record):
    """A controller opened the journal; more than one means that the run was resumed."""

    kind: Literal["controller_started"] = "controller_started"
    pid: PositiveInt
    resumed: bool
    budget: Budget
    """Limits from here on: resuming may change them and nothing else."""


class StockCommitted(Record):
    """The engine as installed, with every option at its default, is the first commit."""

    kind: Literal["stock_committed"] = "stock_committed"
    system: System


class WorkloadSplit(Record):
    """Requests are divided for good; sealed ones are named by their hash only."""

    kind: Literal["workload_split"] = "workload_split"
    development: dict[str, Count]
    """Requests per benchmark that agents may see."""
    sealed: dict[str, Count]
    development_hash: str
    sealed_hash: str


class PhaseStarted(Record):
    """A phase of a round began."""

    kind: Literal["phase_started"] = "phase_started"
    round: PositiveInt
    phase: Annotated[int, Field(ge=0, le=4)]


class NoiseMeasured(Record):
    """Stock against stock: what a gain of nothing looks like on this machine."""

    kind: Literal["noise_measured"] = "noise_measured"
    noise: NonNegative
    """Half width of the A/A band as a relative gain; the promotion rule adds twice this."""
    gain: Gain
    baseline: SpeedFacts
    """Stock's own rates: later runs whose baseline leaves this band are void."""
    record: RecordRef
    device_seconds: NonNegative


class StockCharacterised(Record):
    """Stock against autoregressive decoding, and stock under the scorer."""

    kind: Literal["stock_characterised"] = "stock_characterised"
    autoregressive: SpeedFacts
    autoregressive_seconds: Positive
    """T_AR: seconds per token after the first, on the same engine without its drafter."""
    stock: SpeedFacts
    delta_nats: NonNegative
    """Largest margin at stock's first departures from AR, rounded up to 1/8."""
    departures: Count
    """Requests whose stock output leaves AR's."""
    forcing: ForcingFacts
    record: RecordRef
    device_seconds: NonNegative


class CeilingMeasured(Record):
    """Where the round's starting system loses speed (paper section 3.1)."""

    kind: Literal["ceiling_measured"] = "ceiling_measured"
    round: PositiveInt
    system: System
    ceiling: CeilingFacts
    record: RecordRef
    device_seconds: NonNegative


class DirectionsPlanned(Record):
    """The planner answered; an empty tuple means that it sees nothing worth trying."""

    kind: Literal["directions_planned"] = "directions_planned"
    round: PositiveInt
    phase: Annotated[int, Field(ge=1, le=3)]
    plans: tuple[DirectionPlan, ...]


class DirectionOpened(Record):
    """A worktree of the current best was made for one idea."""

    kind: Literal["direction_opened"] = "direction_opened"
    direction: str
    round: PositiveInt
    base: CommitId


class DirectionClosed(Record):
    """A direction is over; `reason` says why in a word that a program can read."""

    kind: Literal["direction_closed"] = "direction_closed"
    direction: str
    reason: Reason
    detail: str
    headroom: Finite | None = None
    """Best headroom seen, as a gain minus 1."""


class LeaseTaken(Record):
    """A holder has a device to itself."""

    kind: Literal["lease_taken"] = "lease_taken"
    device: str
    holder: str
    purpose: str


class LeaseReleased(Record):
    """The device was verified free again, or its holder died with the controller."""

    kind: Literal["lease_released"] = "lease_released"
    device: str
    holder: str
    seconds: NonNegative


class AgentStarted(Record):
    """An agent process began on a direction."""

    kind: Literal["agent_started"] = "agent_started"
    direction: str
    agent: str
    start: PositiveInt
    """1 for the first start; a resumed run starts it again."""


class AgentNoted(Record):
    """Something an agent said, shortened. A note, never evidence."""

    kind: Literal["agent_noted"] = "agent_noted"
    direction: str
    note: str


class AgentEnded(Record):
    """The agent is gone, by itself or not."""

    kind: Literal["agent_ended"] = "agent_ended"
    direction: str
    error: str | None = None


class CostRecorded(Record):
    """Money of one agent start."""

    kind: Literal["cost_recorded"] = "cost_recorded"
    direction: str
    start: PositiveInt
    usd: NonNegative
    """Total of this start so far; the last one counts."""
    known: bool
    """False: the program did not say, so the cap counts as spent."""


class OperationAnswered(Record):
    """The controller answered an agent; asking the same again gives the same answer."""

    kind: Literal["operation_answered"] = "operation_answered"
    direction: str
    operation: str
    key: str
    """Hash of direction, operation, tree and arguments."""
    ok: bool
    answer: dict[str, Any]
    seconds: NonNegative = 0.0
    """Waiting for devices included."""


class AttemptStarted(Record):
    """A timed attempt counts from here on, whatever becomes of it."""

    kind: Literal["attempt_started"] = "attempt_started"
    direction: str
    key: str
    attempt: PositiveInt
    system: System
    """The direction's commits on top of the current best."""
    baseline: System


class AttemptJudged(Record):
    """The verdict on one attempt, with everything that decided it."""

    kind: Literal["attempt_judged"] = "attempt_judged"
    direction: str
    key: str
    attempt: PositiveInt
    system: System
    baseline: System
    submitted: bool
    """Whether promotion was asked for; `time` only wants to know."""
    verdict: Verdict
    forcing: ForcingFacts | None = None
    speed: SpeedFacts | None = None
    """The candidate's rates in this run."""
    baseline_speed: SpeedFacts | None = None
    baseline_alone: SpeedFacts | None = None
    """Without the candidate, where it fell behind its earlier rate beside it."""
    activations: dict[str, Count] = Field(default_factory=dict)
    record: RecordRef | None = None
    device_seconds: NonNegative = 0.0


class Promoted(Record):
    """The attempt's system is the current best from here on."""

    kind: Literal["promoted"] = "promoted"
    direction: str
    round: PositiveInt
    system: System
    baseline: System
    gain: Gain


class FinalJudged(Record):
    """The sealed final of a round: best against stock on requests nobody saw."""

    kind: Literal["final_judged"] = "final_judged"
    round: PositiveInt
    system: System
    verdict: Verdict
    gain: Gain | None = None
    forcing: ForcingFacts | None = None
    long_forcing: ForcingFacts | None = None
    """On outputs longer than any that development saw."""
    speeds: dict[str, SpeedFacts] = Field(default_factory=dict)
    """`ar`, `stock`, `best`, interleaved on development requests."""
    speedup_over_ar: Positive | None = None
    stock_speedup_over_ar: Positive | None = None
    stock_alone: SpeedFacts | None = None
    """With no other system beside it, where it fell behind its earlier rate."""
    record: RecordRef | None = None
    device_seconds: NonNegative = 0.0


class MemoryJudged(Record):
    """A promoted mechanism became a memory entry, or did not reproduce its source exactly."""

    kind: Literal["memory_judged"] = "memory_judged"
    round: PositiveInt
    direction: str
    entry: str
    admitted: bool
    detail: str


class RoundFinished(Record):
    """A round ended; the next one starts from `best`."""

    kind: Literal["round_finished"] = "round_finished"
    round: PositiveInt
    best: System
    ceiling_after: CeilingFacts | None = None


class BudgetReached(Record):
    """A limit of the deployment's budget stops new work."""

    kind: Literal["budget_reached"] = "budget_reached"
    limit: str
    """The key, such as `max_gpu_hours`."""
    spent: NonNegative
    allowed: NonNegative


class Noticed(Record):
    """Something a reader should know that changes nothing, such as a dropped torn line."""

    kind: Literal["noticed"] = "noticed"
    message: str


class RunFinished(Record):
    """Last event of a journal."""

    kind: Literal["run_finished"] = "run_finished"
    outcome: Outcome
    detail: str
    promoted: Count
    attempts: Count
    confirmed_share: Share | None = None
    """Share of the rounds whose sealed final confirmed."""


Event = (
    RunStarted
    | ControllerStarted
    | StockCommitted
    | WorkloadSplit
    | PhaseStarted
    | NoiseMeasured
    | StockCharacterised
    | CeilingMeasured
    | DirectionsPlanned
    | DirectionOpened
    | DirectionClosed
    | LeaseTaken
    | LeaseReleased
    | AgentStarted
    | AgentNoted
    | AgentEnded
    | CostRecorded
    | OperationAnswered
    | AttemptStarted
    | AttemptJudged
    | Promoted
    | FinalJudged
    | MemoryJudged
    | RoundFinished
    | BudgetReached
    | Noticed
    | RunFinished
)


@cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def parse_event(kind: str, data: dict[str, Any]) -> Event:
    """The event that a journal line holds.

    Raises:
        pydantic.ValidationError: unknown kind, unknown key, or a non-finite number.
    """
    return _adapter().validate_python({"kind": kind, **data})

"""What an agent may ask the controller for, and what it is told: one contract per operation.

A request names an operation and its arguments; unknown arguments are refused. Answers hold counts
and ids, never a sealed request, a text of one, or a rate of a single request. The same question
about the same tree gets the recorded answer.
"""

from typing import Any, Literal

from pydantic import Field, ValidationError

from specpilot.agents.base import Operation
from specpilot.core.errors import Refused
from specpilot.core.numbers import Count, Finite, NonNegative, Share
from specpilot.core.record import Record
from specpilot.core.system import OptionValue, TreeHash
from specpilot.core.verdict import Interval, Reason, VerdictKind


class HeadroomArguments(Record):
    """Ask what a change could gain before it is built."""

    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Settings on top of the worktree's commit; empty measures the commit itself."""
    method: Literal["auto", "replay", "microbenchmark"] = "auto"
    """`auto` replays when only tree, positions and nodes differ from the base."""


class HeadroomAnswer(Record):
    """Cheap evidence, never a promotion."""

    headroom: Finite
    """Estimated gain over the current best, minus 1."""
    method: Literal["replay", "microbenchmark"]
    tau: NonNegative
    base_tau: NonNegative
    detail: str


class CheckArguments(Record):
    """Ask whether the worktree's commit starts, serves, and equals stock on a few requests."""


class CheckAnswer(Record):
    """Correctness on development requests."""

    passed: bool
    tree_hash: TreeHash
    requests: Count
    identical: Count
    """Outputs equal to the current best's, token for token."""
    activations: dict[str, Count]
    """How often each mechanism ran, as the power of two below."""
    detail: str


class ForceArguments(Record):
    """Ask for token forcing of the worktree's commit on development requests."""


class ForceAnswer(Record):
    """The verdict of the forcing rules and the counts behind it."""

    accepted: bool
    tree_hash: TreeHash
    tokens: Count
    mismatch_rate: Share
    stock_mismatch_rate: Share
    large_margin_events: Count
    unexplained: Count
    detail: str


class TimeArguments(Record):
    """Ask for a paired run of the worktree's commit, rebased, against the current best.

    Counts as an attempt. `submit` takes the same arguments and asks for promotion as well.
    """

    retry: Count = 0
    """Raise it by one to time the same tree again; allowed only after `void` or `undecided`."""


class TimeAnswer(Record):
    """What the paired run found."""

    verdict: VerdictKind
    reason: Reason
    detail: str
    run_id: str
    tree_hash: TreeHash
    """Of the tree that was timed: the direction's commits on the current best."""
    attempt: Count
    attempts_left: Count
    gain: Interval | None = None
    threshold: NonNegative | None = None
    requests: Count = 0
    diverged_share: Share = 0.0
    mismatch_rate: Share | None = None
    activations: dict[str, Count] = Field(default_factory=dict)


class CloseArguments(Record):
    """End the direction without (further) promotion, on a written bound."""

    reason: str = Field(min_length=1, max_length=500)
    bound: Finite | None = None
    """The most that the mechanism could gain, minus 1, and why that is measured, not guessed."""


class CloseAnswer(Record):
    """The direction is closed."""

    closed: Literal[True] = True
    reason: str
    bound: Finite | None = None


_ARGUMENTS: dict[Operation, type[Record]] = {
    Operation.HEADROOM: HeadroomArguments,
    Operation.CHECK: CheckArguments,
    Operation.FORCE: ForceArguments,
    Operation.TIME: TimeArguments,
    Operation.SUBMIT: TimeArguments,
    Operation.CLOSE: CloseArguments,
}


def parse_request(message: dict[str, Any]) -> tuple[Operation, Record]:
    """Operation and checked arguments of one request line.

    Raises:
        Refused: unknown operation, unknown argument, or a value of a wrong type.
    """
    name = message.get("op")
    if not isinstance(name, str) or name not in set(Operation):
        raise Refused(
            f"unknown operation {name!r}",
            where="specpilot ctl",
            fix=f"use one of {', '.join(Operation)}",
        )
    operation = Operation(name)
    try:
        return operation, _ARGUMENTS[operation].model_validate(message.get("arguments", {}))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise Refused(
            f"argument '{key}': {first['msg']}",
            where=f"specpilot ctl {operation}",
            fix="see specpilot.controller.contracts",
        ) from error

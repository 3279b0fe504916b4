"""Outputs to be forced: from a timed run, or from a file that any other server wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from specpilot.core.errors import WorkloadError
from specpilot.core.numbers import PositiveInt, TokenId
from specpilot.core.record import Record
from specpilot.core.requests import FinishReason, Request, RequestOutcome


class ForcedOutput(Record):
    """One output with all that its scoring needs."""

    request_id: str
    prompt_token_ids: tuple[TokenId, ...]
    output_token_ids: tuple[TokenId, ...]
    """Emitted ids, the stop token included when the output ended by it."""
    max_new_tokens: PositiveInt

    def ends_early(self, stop_ids: frozenset[int]) -> bool:
        """Whether the output ended without a stop token and below its limit."""
        ids = self.output_token_ids
        return len(ids) < self.max_new_tokens and (not ids or ids[-1] not in stop_ids)


def outputs_of(
    requests: Sequence[Request], outcomes: Sequence[RequestOutcome]
) -> tuple[ForcedOutput, ...]:
    """Every distinct output of a run that did not fail, in the order played."""
    by_id = {request.id: request for request in requests}
    found: dict[ForcedOutput, None] = {}
    for outcome in outcomes:
        if outcome.finish_reason is not FinishReason.FAILED:
            request = by_id[outcome.request_id]
            forced = ForcedOutput(
                request_id=request.id,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=outcome.output_token_ids,
                max_new_tokens=request.max_new_tokens,
            )
            found[forced] = None
    return tuple(found)


def read_outputs(path: Path, vocabulary_size: int) -> tuple[ForcedOutput, ...]:
    """Outputs of any server, one JSON object a line.

    Keys: `prompt_token_ids`, `output_token_ids` (the stop token included), `max_new_tokens`, and
    optionally `request_id` (the line's number when absent).

    Raises:
        WorkloadError: unreadable, malformed, or ids outside the target's vocabulary.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"cannot be read ({error})", where=str(path), fix="check the path"
        ) from error
    outputs = [
        _parse(line, f"{path}, line {number}", str(number), vocabulary_size)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not outputs:
        raise WorkloadError("holds no output", where=str(path), fix="give one object per line")
    return tuple(outputs)


def _parse(line: str, where: str, name: str, vocabulary_size: int) -> ForcedOutput:
    fix = "give prompt_token_ids, output_token_ids and max_new_tokens of the target's tokenizer"
    try:
        row = json.loads(line)
        if not isinstance(row, Mapping):
            raise WorkloadError("is not an object", where=where, fix=fix)
        output = ForcedOutput.model_validate({"request_id": name} | dict(row))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise WorkloadError(f"key '{key}': {first['msg']}", where=where, fix=fix) from error
    except ValueError as error:
        raise WorkloadError(f"is not JSON ({error})", where=where, fix=fix) from error
    largest = max((*output.prompt_token_ids, *output.output_token_ids), default=0)
    if largest >= vocabulary_size:
        raise WorkloadError(
            f"token id {largest} is outside the vocabulary of {vocabulary_size}",
            where=where,
            fix=fix,
        )
    if not output.prompt_token_ids or not output.output_token_ids:
        raise WorkloadError("holds no prompt or no output", where=where, fix=fix)
    return output

"""Reads one completion, whole or streamed, and says what is wrong with it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specpilot.core.errors import EngineFailure
from specpilot.engines.transport import JSON_ERRORS
from specpilot.sandbox.foreign import one_line, spoken


@dataclass(frozen=True, slots=True)
class Completion:
    """What a server said of one output.

    Attributes:
        token_ids: emitted ids, the stop token included.
        finish_reason: `stop` or `length` as the server names it.
        completion_tokens: the usage field; None when it was not sent.
        seconds_to_first_token: when the first id arrived; None for a whole answer.
    """

    token_ids: tuple[int, ...]
    finish_reason: str | None
    completion_tokens: int | None
    seconds_to_first_token: float | None = None


def parse_completion(chunks: Sequence[tuple[float, bytes]], *, stream: bool) -> Completion:
    """Read the bytes of one answer.

    Args:
        chunks: (seconds since the request was sent, bytes).

    Raises:
        EngineFailure: not a completion with token ids, or a stream without its end mark.
    """
    try:
        return _parse_stream(chunks) if stream else _parse_whole(chunks)
    except (*JSON_ERRORS, KeyError, TypeError, IndexError, AttributeError) as error:
        raise EngineFailure(
            f"malformed completion ({type(error).__name__}: {one_line(str(error))})",
            where="/v1/completions",
            fix="the run is void; mend the engine",
        ) from error


def _parse_whole(chunks: Sequence[tuple[float, bytes]]) -> Completion:
    answer = json.loads(b"".join(part for _, part in chunks))
    choice = answer["choices"][0]
    return Completion(
        token_ids=_ids(choice["token_ids"]),
        finish_reason=choice["finish_reason"],
        completion_tokens=answer["usage"]["completion_tokens"],
    )


def _parse_stream(chunks: Sequence[tuple[float, bytes]]) -> Completion:
    ids: list[int] = []
    reason: str | None = None
    usage: int | None = None
    first: float | None = None
    ended = False
    pending: list[bytes] = []
    for seconds, part in chunks:
        # Joined where a line ends: joining at every part would take the square of a long line.
        *lines, rest = part.split(b"\n")
        if lines:
            lines[0] = b"".join((*pending, lines[0]))
            pending = []
        pending.append(rest)
        for line in lines:
            data = _data(line)
            if data is None:
                continue
            if ended:
                raise ValueError("data after the end mark")
            if data == b"[DONE]":
                ended = True
                continue
            event = json.loads(data)
            if "error" in event:
                raise ValueError(f"error in the stream: {event['error'].get('message')}")
            for choice in event["choices"]:
                new = _ids(choice.get("token_ids") or [])
                if new and first is None:
                    first = seconds
                ids += new
                reason = choice.get("finish_reason") or reason
            if event.get("usage") is not None:
                usage = event["usage"]["completion_tokens"]
    if not ended:
        raise ValueError("the stream has no end mark")
    return Completion(tuple(ids), reason, usage, first)


def _data(line: bytes) -> bytes | None:
    line = line.rstrip(b"\r")
    return line[5:].strip() if line.startswith(b"data:") else None


def _ids(values: Any) -> tuple[int, ...]:
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values):
        raise TypeError("a token id is not an integer")
    return tuple(values)


def judge_completion(
    completion: Completion, limit: int, vocabulary_size: int, stop_ids: frozenset[int]
) -> str | None:
    """What is wrong with a completion in one line, or None.

    An output may end by a stop token, which is its last id and its only one, or at the limit.
    """
    ids = completion.token_ids
    if completion.completion_tokens != len(ids):
        return f"usage says {spoken(completion.completion_tokens)} tokens, {len(ids)} ids came"
    outside = next((token for token in ids if not 0 <= token < vocabulary_size), None)
    if outside is not None:
        return f"token id {spoken(outside)} is outside the vocabulary of {vocabulary_size}"
    return judge_end(ids, completion.finish_reason, limit, stop_ids)


def judge_end(
    ids: Sequence[int], finish_reason: str | None, limit: int, stop_ids: frozenset[int]
) -> str | None:
    """What is wrong with the end of an output in one line, or None."""
    if not ids:
        return "no token was emitted"
    if len(ids) > limit:
        return f"{len(ids)} tokens were emitted, {limit} were allowed"
    early = next((place for place, token in enumerate(ids[:-1]) if token in stop_ids), None)
    if early is not None:
        return f"token {early} is a stop token, and the output went on"
    expected = "stop" if ids[-1] in stop_ids else "length" if len(ids) == limit else None
    if expected is None:
        return f"ended early: {len(ids)} of {limit} tokens and no stop token"
    if finish_reason != expected:
        return f"finish reason is {spoken(finish_reason)}, its ids say {expected!r}"
    return None

"""The judge's client: plays requests over a Unix socket and believes only ids and its own clock.

Seconds run from the request being sent to its last byte. Rates use the returned token ids, never
chunks or the server's word. An answer is refused when ids are out of range, when the usage field
disagrees with them, or when the output ended without a stop token or its limit: such a request is a
failed outcome.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Counters, Profile, TokenScore
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.engines.archives import ARCHIVE_ERRORS, read_archive, to_edges
from specpilot.engines.base import Recording
from specpilot.engines.completions import Completion, judge_completion, parse_completion
from specpilot.engines.target_folder import Vocabulary
from specpilot.engines.transport import (
    MAX_ANSWER_BYTES,
    Transport,
    error_message,
    json_object,
    malformed,
)
from specpilot.sandbox.foreign import one_line, spoken

_MOST_CANDIDATES = 256
CLIENT_VERSION = f"specpilot client 1, aiohttp {aiohttp.__version__}"


class EngineClient:
    """Speaks to one server. Use it as an async context manager."""

    def __init__(
        self,
        socket: Path,
        vocabulary: Vocabulary,
        *,
        stream: bool = True,
        timeout_seconds: float = 1800.0,
    ) -> None:
        self._transport = Transport(socket, timeout_seconds=timeout_seconds)
        self._vocabulary = vocabulary
        self._stream = stream

    async def __aenter__(self) -> Self:
        self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections; calling it again is harmless."""
        await self._transport.close()

    async def generate(self, request: Request, *, ignore_eos: bool = False) -> RequestOutcome:
        """Play one request, greedily. A refused or wrong answer is a failed outcome.

        Raises:
            EngineFailure: the server vanished, or answered something that is not a completion.
        """
        body = {
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": 0,
            "stream": self._stream,
            "return_token_ids": True,
            "ignore_eos": ignore_eos,
        }
        if self._stream:
            body["stream_options"] = {"include_usage": True}
        answer = await self._transport.exchange("POST", "/v1/completions", body)
        if answer.status != 200:
            reason = f"/v1/completions answered {answer.status}: {error_message(answer.body)}"
            return _failed(request, (), answer.seconds, reason)
        completion = parse_completion(answer.chunks, stream=self._stream)
        return self._outcome(request, completion, answer.seconds, ignore_eos=ignore_eos)

    def _outcome(
        self, request: Request, completion: Completion, seconds: float, *, ignore_eos: bool
    ) -> RequestOutcome:
        stop_ids = frozenset[int]() if ignore_eos else self._vocabulary.stop_ids
        fault = judge_completion(
            completion, request.max_new_tokens, self._vocabulary.size, stop_ids
        )
        ids = completion.token_ids
        if fault is not None:
            size = self._vocabulary.size
            usable = tuple(t for t in ids[: request.max_new_tokens] if 0 <= t < size)
            return _failed(request, usable, seconds, fault)
        return RequestOutcome(
            request_id=request.id,
            benchmark=request.benchmark,
            finish_reason=FinishReason.STOP if ids[-1] in stop_ids else FinishReason.LENGTH,
            output_token_ids=ids,
            seconds=seconds,
            seconds_to_first_token=completion.seconds_to_first_token,
        )

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        """Teacher-force `output` after `prompt`; one score per output token.

        Raises:
            EngineFailure: the server failed, or the answer is not one finite margin and one id in
                range for each token.
        """
        body = {
            "prompt_token_ids": list(prompt),
            "output_token_ids": list(output),
            "prefill_length": prefill_length,
        }
        answer = await self.call("POST", "/score", body)
        argmax, margins = answer.get("argmax"), answer.get("margin_nats")
        if (
            not isinstance(argmax, list)
            or not isinstance(margins, list)
            or not len(argmax) == len(margins) == len(output)
            or any(not isinstance(token, int) for token in argmax)
            or any(not 0 <= token < self._vocabulary.size for token in argmax)
        ):
            raise malformed("/score", "not one id and one margin per output token")
        try:
            scores = tuple(
                TokenScore(token=token, argmax=best, margin_nats=margin)
                for token, best, margin in zip(output, argmax, margins, strict=True)
            )
        except ValidationError as error:
            raise malformed("/score", error.errors()[0]["msg"]) from error
        if any(entry.token == entry.argmax and entry.margin_nats != 0 for entry in scores):
            raise malformed("/score", "a token that is the argmax has a margin")
        return scores

    async def record(self, request: Request, positions: int) -> Recording:
        """Greedy output of a request with the lattice drafted at every position.

        Raises:
            EngineFailure: the server failed, or the arrays do not fit each other.
        """
        body = {
            "prompt_token_ids": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
            "positions": positions,
        }
        raw = await self._answer("POST", "/record", body)
        try:
            arrays = read_archive(io.BytesIO(raw), MAX_ANSWER_BYTES)
            tokens, ids, edge = (arrays[name] for name in ("tokens", "ids", "edge"))
        except ARCHIVE_ERRORS as error:
            raise malformed("/record", f"not an archive of three arrays ({error})") from error
        self._check_recording(tokens, ids, edge, positions, request.max_new_tokens)
        single = to_edges(edge)
        if np.isnan(single).any() or (single == np.inf).any():
            raise malformed("/record", "edge scores hold NaN or +infinity")
        return Recording(request.id, tokens.astype(np.int64), ids.astype(np.int64), single)

    def _check_recording(
        self,
        tokens: NDArray[Any],
        ids: NDArray[Any],
        edge: NDArray[Any],
        positions: int,
        limit: int,
    ) -> None:
        size = self._vocabulary.size
        fits = (
            tokens.ndim == 1
            and 1 <= len(tokens) <= limit
            and ids.ndim == 3
            and len(tokens) - 1 <= len(ids) <= limit
            and 1 <= ids.shape[2] <= _MOST_CANDIDATES
            and ids.shape[1] == positions
            and edge.shape == (*ids.shape, ids.shape[2])
            and tokens.dtype.kind in "iu"
            and ids.dtype.kind in "iu"
            and edge.dtype.kind == "f"
        )
        if not fits:
            shapes = f"tokens {tokens.shape}, ids {ids.shape}, edge {edge.shape}"
            raise malformed("/record", f"arrays do not fit {positions} positions: {shapes}")
        for name, values in (("tokens", tokens), ("ids", ids)):
            if values.size and not (values.min() >= 0 and values.max() < size):
                raise malformed("/record", f"{name} holds ids outside the vocabulary")

    async def profile(self, request: Request) -> Profile:
        """Seconds per step by kernel class while the request is played.

        Raises:
            EngineFailure: the server failed or the answer is not a profile.
        """
        body = {
            "prompt_token_ids": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
        }
        answer = await self.call("POST", "/profile", body)
        try:
            return Profile.model_validate(answer)
        except ValidationError as error:
            raise malformed("/profile", _first(error)) from error

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        """Seconds per step while the request is played with a best-first tree of each size.

        Raises:
            EngineFailure: the server failed, or did not answer one positive time per size.
        """
        body = {
            "prompt_token_ids": list(request.prompt_token_ids),
            "max_tokens": request.max_new_tokens,
            "positions": positions,
            "nodes": list(nodes),
        }
        answer = await self.call("POST", "/step-times", body)
        times = answer.get("seconds_per_step")
        if (
            not isinstance(times, dict)
            or set(times) != {str(size) for size in nodes}
            or not all(isinstance(t, float) and 0 < t < math.inf for t in times.values())
        ):
            raise malformed("/step-times", "not one positive time per tree size")
        return {size: times[str(size)] for size in nodes}

    async def counters(self) -> Counters:
        """The server's own counts since the last flush.

        Raises:
            EngineFailure: the server failed or the answer holds something else.
        """
        answer = await self.call("GET", "/counters")
        try:
            return Counters.model_validate(answer)
        except ValidationError as error:
            raise malformed("/counters", _first(error)) from error

    async def flush(self) -> None:
        """Empty caches and counters, and verify it.

        Raises:
            EngineFailure: not confirmed, requests still running, or counts left.
        """
        answer = await self.call("POST", "/flush", {})
        counters = await self.counters()
        if answer.get("flushed") is not True or answer.get("running") != 0 or counters.steps != 0:
            raise EngineFailure(
                f"did not confirm an empty state (flushed {spoken(answer.get('flushed'))}, "
                f"running {spoken(answer.get('running'))}, steps {spoken(counters.steps)})",
                where="/flush",
                fix="see the server's log",
            )

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """One JSON exchange.

        Raises:
            EngineFailure: no answer, an error status, or no JSON object of finite numbers.
        """
        return json_object(await self._answer(method, path, body), path)

    async def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        answer = await self._transport.exchange(method, path, body)
        if answer.status != 200:
            raise EngineFailure(
                f"answered {answer.status}: {error_message(answer.body)}",
                where=path,
                fix="see the server's log",
            )
        return answer.body


def _failed(request: Request, ids: tuple[int, ...], seconds: float, reason: str) -> RequestOutcome:
    return RequestOutcome(
        request_id=request.id,
        benchmark=request.benchmark,
        finish_reason=FinishReason.FAILED,
        output_token_ids=ids,
        seconds=seconds,
        error=one_line(reason, 500),
    )


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return one_line(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

"""OpenAI completions and chat completions, whole or as server-sent events."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from specengine.decoding.session import Session
from specengine.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    read_request,
)
from specengine.server.service import Service, wait_for
from specengine.server.shapes import ChatShape, CompletionShape, Shape
from specengine.server.text import TextOutput
from specengine.server.work import Emission, Generation

DEFAULT_COMPLETION_TOKENS = 16


async def completions(request: Request) -> Response:
    """`POST /v1/completions`."""
    service: Service = request.app.state.service
    body = await read_request(request, CompletionRequest)
    prompt = body.prompt
    if isinstance(prompt, str):
        # In a thread: a long text would keep every other stream waiting.
        prompt = await asyncio.to_thread(service.codec.encode, prompt, "prompt")
    limit = body.max_tokens or DEFAULT_COMPLETION_TOKENS
    _check(service, prompt, limit, "prompt", "max_tokens")
    return await _generate(request, body, prompt, limit, CompletionShape)


async def chat_completions(request: Request) -> Response:
    """`POST /v1/chat/completions`."""
    service: Service = request.app.state.service
    body = await read_request(request, ChatRequest)
    prompt = await asyncio.to_thread(
        service.codec.encode_chat, body.plain_messages(), body.chat_template_kwargs
    )
    limit = body.max_tokens or body.max_completion_tokens
    if limit is None:
        limit = max(1, service.engine.target.max_positions - len(prompt))
    named = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    _check(service, prompt, limit, "messages", named)
    return await _generate(request, body, prompt, limit, ChatShape)


def _check(
    service: Service, prompt: Sequence[int], limit: int, prompt_field: str, limit_field: str
) -> None:
    """Refuse what the target has no tokens or positions for, by the names of the request's fields.

    Raises:
        RequestError: naming the field.
    """
    service.engine.check_tokens(prompt, prompt_field)
    service.engine.check_room(len(prompt), limit, limit_field, prompt_field)


async def _generate(
    request: Request,
    body: GenerationRequest,
    prompt: Sequence[int],
    limit: int,
    shape_type: Callable[..., Shape],
) -> Response:
    service: Service = request.app.state.service
    shape = shape_type(
        identity=uuid.uuid4().hex,
        created=int(datetime.now(UTC).timestamp()),
        model=body.model or service.model,
        token_ids=body.return_token_ids,
    )
    work = Generation(_starter(service, body, prompt, limit), stream=body.stream)
    service.scheduler.submit(work)
    finished = False
    try:
        # The first emission decides the status: a request that fails at once is no stream.
        first = await wait_for(work.emissions.get(), request)
        finished = first.error is not None or first.finish_reason is not None
        if first.error is not None:
            raise first.error
        text = TextOutput(service.codec.tokenizer, body.stops)
        if not body.stream:
            whole = text.add(first.tokens) + text.finish()
            usage = _usage(prompt, len(first.tokens), first.steps)
            return JSONResponse(shape.whole(whole, first.tokens, first.finish_reason, usage))
        events = _events(service, work, first, text, shape, body, prompt)
        finished = True  # from here on the stream itself cancels
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    finally:
        if not finished:
            service.scheduler.cancel(work)


def _starter(
    service: Service, body: GenerationRequest, prompt: Sequence[int], limit: int
) -> Callable[[], Session]:
    sampling = body.sampling()

    def start() -> Session:
        halt = None
        if body.stops:
            watched = TextOutput(service.codec.tokenizer, body.stops)

            def halt(token: int) -> bool:
                watched.add([token])
                return watched.stopped

        return service.engine.start(prompt, limit, body.ignore_eos, halt, sampling)

    return start


async def _events(
    service: Service,
    work: Generation,
    first: Emission,
    text: TextOutput,
    shape: Shape,
    body: GenerationRequest,
    prompt: Sequence[int],
) -> AsyncIterator[bytes]:
    """The stream: one event per step, the usage, and the end mark.

    Ids are never held back; text may trail them by an unfinished character or by what could become
    a stop string.
    """
    separate_usage = body.stream_options is not None and body.stream_options.include_usage
    emission, count = first, 0
    try:
        opening = shape.opening()
        if opening is not None:
            yield _event(opening)
        while True:
            if emission.error is not None:
                yield _event(emission.error.body())
                break
            count += len(emission.tokens)
            piece = text.add(emission.tokens)
            if emission.finish_reason is None:
                yield _event(shape.piece(piece, emission.tokens, None))
                emission = await work.emissions.get()
                continue
            last = shape.piece(piece + text.finish(), emission.tokens, emission.finish_reason)
            usage = _usage(prompt, count, emission.steps)
            if separate_usage:
                yield _event(last)
                yield _event(shape.usage(usage))
            else:
                yield _event({**last, "usage": usage})
            break
        yield b"data: [DONE]\n\n"
    finally:
        if emission.finish_reason is None and emission.error is None:
            service.scheduler.cancel(work)


def _event(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return b"data: " + text.encode() + b"\n\n"


def _usage(prompt: Sequence[int], completion: int, steps: int) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": completion,
        "total_tokens": len(prompt) + completion,
        "steps": steps,
    }

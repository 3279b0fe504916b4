"""A server that answers as scripted, for tests of the client that meets it."""

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from specpilot.core.requests import Request, RequestOutcome
from specpilot.engines.client import EngineClient
from specpilot.engines.target_folder import Vocabulary

VOCABULARY = Vocabulary(size=100, stop_ids=frozenset({9}))
REQUEST = Request(id="a/0", benchmark="a", prompt_token_ids=(1, 2), max_new_tokens=4)
COUNTERS = {
    "steps": 0,
    "emitted_tokens": 0,
    "drafted_tokens": 0,
    "verified_rows": 0,
    "activations": {},
    "seconds": {},
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def meet(
    folder: Path,
    routes: dict[str, Handler],
    action: Callable[[EngineClient], Awaitable[Any]],
    *,
    stream: bool = True,
) -> Any:
    """Run an action against an adversary that answers as scripted."""

    async def play() -> Any:
        application = web.Application()
        for path, handler in routes.items():
            application.router.add_route("*", path, handler)
        runner = web.AppRunner(application)
        await runner.setup()
        # As deep as run folders get: longer than a socket's address may be.
        deep = folder / ("d" * 60) / ("e" * 60)
        deep.mkdir(parents=True, exist_ok=True)
        here = Path.cwd()
        try:
            os.chdir(deep)
            await web.UnixSite(runner, "s").start()
            os.chdir(here)
            async with EngineClient(
                deep / "s", VOCABULARY, stream=stream, timeout_seconds=5
            ) as client:
                return await action(client)
        finally:
            await runner.cleanup()

    return asyncio.run(play())


def whole(ids: list[Any], reason: str | None, usage: int | None) -> Handler:
    """A whole answer."""

    async def answer(request: web.Request) -> web.Response:
        choice = {"text": "", "token_ids": ids, "finish_reason": reason}
        return web.json_response({"choices": [choice], "usage": {"completion_tokens": usage}})

    return answer


def streamed(events: list[Any], *, done: bool = True, pause: float = 0.0) -> Handler:
    """A stream of events, cut anywhere."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            # Cut anywhere: chunks are not events.
            data = f"data: {json.dumps(event)}\n\n".encode()
            await response.write(data[:7])
            await asyncio.sleep(pause)
            await response.write(data[7:])
        if done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    return answer


def chunk(*ids: int, reason: str | None = None) -> dict[str, Any]:
    """One event with ids."""
    return {"choices": [{"text": "", "token_ids": list(ids), "finish_reason": reason}]}


def usage(count: int) -> dict[str, Any]:
    """The event that counts."""
    return {"choices": [], "usage": {"completion_tokens": count}}


def generate(folder: Path, handler: Handler, *, stream: bool) -> RequestOutcome:
    """What the client makes of `REQUEST`."""
    found = meet(
        folder, {"/v1/completions": handler}, lambda client: client.generate(REQUEST), stream=stream
    )
    assert isinstance(found, RequestOutcome)
    return found


def text_handler(text: str | bytes) -> Handler:
    """Bytes, whatever is asked."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=text)

    return answer


def archive(**arrays: Any) -> bytes:
    """Arrays as bytes."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def make_arrays(**changes: Any) -> dict[str, Any]:
    """Arrays of a recording that fits four positions."""
    arrays = {
        "tokens": np.array([3, 4, 5]),
        "ids": np.zeros((2, 4, 2), np.int64),
        "edge": np.full((2, 4, 2, 2), -1.0, np.float32),
    }
    return arrays | changes

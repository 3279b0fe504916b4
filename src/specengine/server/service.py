"""What all endpoints share: the engine behind its scheduler, and waiting without losing clients."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from specengine.decoding.engine import Engine
from specengine.server.scheduler import Scheduler
from specengine.server.text import TextCodec
from specengine.server.work import Call

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Service:
    """One served system.

    Attributes:
        engine: touched by the scheduler's thread only, except for its pure checks.
        codec: tokenizer and chat template.
        model: name that clients see.
        tree_hash: hash that the starter gave, echoed so that it can tell servers apart.
    """

    engine: Engine
    scheduler: Scheduler
    codec: TextCodec
    model: str
    tree_hash: str | None


async def wait_for(awaitable: Awaitable[Result], request: Request) -> Result:
    """Await a result while watching the client's connection.

    Raises:
        ClientDisconnect: the client is gone; nobody would read the answer.
    """
    result = asyncio.ensure_future(awaitable)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({result, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        gone.cancel()
        if not result.done():
            result.cancel()


async def call_engine(
    service: Service, request: Request, action: Callable[[Callable[[], bool]], Any]
) -> Any:
    """Run one call of the engine in its turn.

    Raises:
        ApiError: the queue is full, or the call failed.
        ClientDisconnect: the client is gone; the call ends as soon as it can.
    """
    call = Call(action)
    service.scheduler.submit(call)
    try:
        return await wait_for(call.answer, request)
    finally:
        # Without effect on a call that has ended.
        service.scheduler.cancel(call)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

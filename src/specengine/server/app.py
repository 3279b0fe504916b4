"""The ASGI application: routes, and errors in one shape."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from specengine.errors import EngineError
from specengine.server import completions, judging
from specengine.server.failures import ApiError, as_api_error
from specengine.server.service import Service

WORKER_END_SECONDS = 5.0
"""How long the worker may take for its current step when the server ends."""

_ROUTES: tuple[tuple[str, str, Callable[..., object]], ...] = (
    ("GET", "/health", judging.health),
    ("GET", "/v1/models", judging.models),
    ("GET", "/v1/models/{name:path}", judging.model),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/chat/completions", completions.chat_completions),
    ("POST", "/score", judging.score),
    ("POST", "/record", judging.record),
    ("POST", "/profile", judging.profile),
    ("POST", "/step-times", judging.step_times),
    ("POST", "/flush", judging.flush),
    ("GET", "/counters", judging.counters),
    ("GET", "/metrics", judging.metrics),
)


def build_app(service: Service) -> Starlette:
    """The application; its lifespan starts and ends the worker thread."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.scheduler.start()
        yield
        await anyio.to_thread.run_sync(service.scheduler.close, WORKER_END_SECONDS)

    app = Starlette(
        routes=[Route(path, endpoint, methods=[method]) for method, path, endpoint in _ROUTES],
        exception_handlers={
            ApiError: _api_error,
            ClientDisconnect: _client_gone,
            EngineError: _engine_error,
            HTTPException: _http_error,
        },
        lifespan=lifespan,
    )
    app.state.service = service
    return app


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _engine_error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _client_gone(request: Request, error: Exception) -> Response:
    # Nobody reads it; a request must end with some answer all the same.
    return Response(status_code=499)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return ApiError(message, status=error.status_code).response()

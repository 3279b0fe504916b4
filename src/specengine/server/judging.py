"""Endpoints for whoever measures the system: scores, recordings, profile, counters, flush."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import specengine
from specengine.server.failures import ApiError
from specengine.server.metrics import prometheus_text
from specengine.server.protocol import (
    ProfileRequest,
    RecordRequest,
    ScoreRequest,
    StepTimesRequest,
    read_request,
)
from specengine.server.service import Service, call_engine


async def health(request: Request) -> Response:
    """`GET /health`: what runs here, so that a judge can tell it is what was started."""
    service: Service = request.app.state.service
    return JSONResponse(
        {
            "status": "ready",
            "tree_hash": service.tree_hash,
            "package": str(Path(specengine.__file__).resolve().parent),
            "options": service.engine.options.model_dump(mode="json"),
            "autoregressive": service.engine.drafter is None,
        }
    )


async def models(request: Request) -> Response:
    """`GET /v1/models`: the one that is served."""
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [_model(service)]})


async def model(request: Request) -> Response:
    """`GET /v1/models/{name}`: the one that is served, under any other name 404."""
    service: Service = request.app.state.service
    name = request.path_params["name"]
    if name != service.model:
        raise ApiError(
            f"model '{name}' is not served here; '{service.model}' is",
            status=404,
            param="model",
            code="model_not_found",
        )
    return JSONResponse(_model(service))


async def score(request: Request) -> Response:
    """`POST /score`: what the exact weights say at every token of an output."""
    service: Service = request.app.state.service
    body = await read_request(request, ScoreRequest)
    _check(service, body.prompt_token_ids, "prompt_token_ids")
    _check(service, body.output_token_ids, "output_token_ids")

    def action(wanted: Callable[[], bool]) -> dict[str, Any]:
        scores = service.engine.score(
            body.prompt_token_ids, body.output_token_ids, body.prefill_length
        )
        return {"argmax": scores.argmax.tolist(), "margin_nats": scores.margin_nats.tolist()}

    return await _answered(service, request, action, JSONResponse)


async def record(request: Request) -> Response:
    """`POST /record`: greedy output with the lattice of every position, as an `.npz`."""
    service: Service = request.app.state.service
    body = await read_request(request, RecordRequest)
    _check(service, body.prompt_token_ids, "prompt_token_ids")
    _check_room(service, body)

    def action(wanted: Callable[[], bool]) -> bytes:
        recording = service.engine.record(
            body.prompt_token_ids, body.max_tokens, body.positions, wanted
        )
        archive = io.BytesIO()
        np.savez(archive, tokens=recording.tokens, ids=recording.ids, edge=recording.edge)
        return archive.getvalue()

    return await _answered(
        service,
        request,
        action,
        lambda raw: Response(raw, media_type="application/octet-stream"),
    )


async def profile(request: Request) -> Response:
    """`POST /profile`: seconds per step by kernel class."""
    from specengine.server.profiling import profile_request

    service: Service = request.app.state.service
    body = await read_request(request, ProfileRequest)
    _check(service, body.prompt_token_ids, "prompt_token_ids")
    _check_room(service, body)

    def action(wanted: Callable[[], bool]) -> dict[str, Any]:
        return profile_request(service.engine, body.prompt_token_ids, body.max_tokens, wanted)

    return await _answered(service, request, action, JSONResponse)


async def step_times(request: Request) -> Response:
    """`POST /step-times`: seconds per step with best-first trees of several sizes."""
    from specengine.server.profiling import time_steps

    service: Service = request.app.state.service
    body = await read_request(request, StepTimesRequest)
    _check(service, body.prompt_token_ids, "prompt_token_ids")
    _check_room(service, body)

    def action(wanted: Callable[[], bool]) -> dict[str, Any]:
        return time_steps(
            service.engine,
            body.prompt_token_ids,
            body.max_tokens,
            body.positions,
            body.nodes,
            wanted,
        )

    return await _answered(service, request, action, JSONResponse)


async def counters(request: Request) -> Response:
    """`GET /counters`: the engine's own counts since the last flush."""
    service: Service = request.app.state.service
    return JSONResponse(service.engine.counters.snapshot())


async def flush(request: Request) -> Response:
    """`POST /flush`: forget request memory and counts; 409 while requests run or wait."""
    service: Service = request.app.state.service
    busy = service.scheduler.run_when_idle(service.engine.flush)
    if busy:
        raise ApiError(
            f"{busy} requests are running or waiting; flush when they are done",
            status=409,
            kind="conflict_error",
            code="busy",
        )
    return JSONResponse({"flushed": True, "running": 0})


async def metrics(request: Request) -> Response:
    """`GET /metrics`: Prometheus text."""
    service: Service = request.app.state.service
    text = prometheus_text(service.engine.counters, service.scheduler)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.model, "object": "model", "created": 0, "owned_by": "specengine"}


def _check(service: Service, tokens: list[int], where: str) -> None:
    service.engine.check_tokens(tokens, where)


def _check_room(service: Service, body: RecordRequest | ProfileRequest) -> None:
    prompt = len(body.prompt_token_ids)
    service.engine.check_room(prompt, body.max_tokens, prompt_where="prompt_token_ids")


async def _answered(
    service: Service,
    request: Request,
    action: Callable[[Callable[[], bool]], Any],
    respond: Callable[[Any], Response],
) -> Response:
    return respond(await call_engine(service, request, action))

"""Failures of a request as HTTP answers in OpenAI's shape."""

from starlette.responses import JSONResponse

from specengine.errors import EngineError, RequestError


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: HTTP status.
        kind: OpenAI's error type.
        param: the request's field at fault, or None.
        code: a word that a program can test, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, object]:
        """The JSON of the answer."""
        error = {
            "message": str(self),
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), status_code=self.status)


def as_api_error(error: Exception) -> ApiError:
    """The answer for a failure inside the engine."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(str(error), param=error.where)
    code = type(error).__name__ if isinstance(error, EngineError) else "engine_failure"
    message = str(error).strip().splitlines() or [type(error).__name__]
    return ApiError(message[0], status=500, kind="server_error", code=code)


def queue_full(limit: int) -> ApiError:
    """More requests wait than the server was started for."""
    return ApiError(
        f"the queue is full ({limit} requests wait); retry later",
        status=429,
        kind="rate_limit_error",
        code="queue_full",
    )


def shutting_down() -> ApiError:
    """The server finishes its running requests and takes no others."""
    return ApiError(
        "the server is shutting down", status=503, kind="server_error", code="shutting_down"
    )


def not_running() -> ApiError:
    """The request ended because the server was told to end at once."""
    return ApiError(
        "the server ended before the request did", status=503, kind="server_error", code="ended"
    )

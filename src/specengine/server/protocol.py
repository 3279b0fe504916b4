"""Requests: what is accepted, what is accepted without effect, and what is refused.

An OpenAI client sends fields that this engine has no use for. Those that cannot change its output
are accepted; a value that would change it is refused, as is a field nobody knows: a misspelt one
would change the output silently.
"""

import difflib
import json
import re
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.requests import Request

from specengine.server.failures import ApiError
from specengine.server.sampling_fields import SamplingFields

MAX_BODY_BYTES = 16 * 2**20
"""A million token ids fit. Parsing holds up every stream, for a second or so at this size."""
MAX_NESTING = 64
"""Lists and objects inside one another; what walks a body may do so by recursion."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SHOWN = 80
"""Characters of a client's own text that an error repeats."""
Item = TypeVar("Item")
Items = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first wrong item ends its check: an error of its own for each of the millions that
a body may hold would take minutes and the machine's memory."""
Tokens = Annotated[Items[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Model = TypeVar("Model", bound=BaseModel)

_NO_EFFECT = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
}
"""Fields that cannot change an output."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "echo": (None, False),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "min_tokens": (None, 0),
    "stop_token_ids": (None, []),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}
"""Fields that would change the output or the answer; only these values are accepted."""
_OTHER_INPUTS = ("images", "image", "image_url", "videos", "video", "audio", "input_audio", "files")
"""Names under which clients put what is no text into a message; templates would pass them over."""
_UNION_TAGS = ("str", "list[str]", "list[int]", "list[dict[str,any]]")
"""Alternatives that pydantic adds to a field's path; a client knows the field alone."""


class _Strict(BaseModel):
    """Fields of exact types and no others; of unknown ones the first is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = {name: body[name] for name in cls.model_fields if name in body}
        first = next(({name: body[name]} for name in body if name not in known), {})
        return known | first


class StreamOptions(_Strict):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    """Send the usage in a chunk of its own, with no choices; else it rides on the last chunk."""
    include_obfuscation: bool = False
    """Accepted: padding hides sizes from those who listen, and means nothing to the client."""


class GenerationRequest(SamplingFields):
    """Fields that completions and chat share."""

    model: str | None = None
    """Echoed; the server serves one model whatever its name."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | Items[str] | None = None
    """Up to 16 strings; the text ends before the first that appears."""
    return_token_ids: bool = False
    """Add `token_ids` to each choice: every emitted id, the stop token included."""
    ignore_eos: bool = False
    """Go on after the model's stop tokens."""

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in body.items():
            if name in cls.model_fields:
                # Null means absent, as in OpenAI's own descriptions of its fields.
                if value is not None or cls.model_fields[name].is_required():
                    kept[name] = value
            elif name in _NEUTRAL:
                if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
                    shown = _short(repr(value))
                    raise ApiError(f"{name}: {shown} is not supported by this engine", param=name)
            elif name not in _NO_EFFECT:
                raise ApiError(_unknown(name, cls), param=_short(name))
        return kept

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, value: str | list[str] | None) -> str | list[str] | None:
        stops = [value] if isinstance(value, str) else value or []
        if len(stops) > 16 or any(not stop for stop in stops):
            raise ValueError("must be at most 16 strings, none of them empty")
        return value

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt: str | list[int]
    max_tokens: int | None = Field(default=None, ge=1)
    """16 when absent, as OpenAI has it."""

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]  # a batch of one
        if value in ("", []):
            raise ValueError("must not be empty")
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(type(token) is int for token in value)
        ):
            raise ValueError("must be one string or one list of token ids")
        return value


class ChatMessage(BaseModel):
    """One message; the target's chat template decides which other fields mean something."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | Items[dict[str, Any]] | None = None


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: Items[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """The same under its newer name; all remaining positions when both are absent."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, such as `enable_thinking`."""

    @model_validator(mode="after")
    def _one_limit(self) -> "ChatRequest":
        if None not in (self.max_tokens, self.max_completion_tokens) and (
            self.max_tokens != self.max_completion_tokens
        ):
            raise ApiError(
                "max_tokens and max_completion_tokens disagree", param="max_completion_tokens"
            )
        return self

    def plain_messages(self) -> list[dict[str, Any]]:
        """Messages as templates expect them: text parts joined to one string."""
        messages = []
        for index, message in enumerate(self.messages):
            table = message.model_dump(exclude_none=True)
            other = next((name for name in _OTHER_INPUTS if table.get(name)), None)
            if other is not None:
                where = f"messages.{index}.{other}"
                raise ApiError(f"{where}: only text is supported", param=where)
            if isinstance(message.content, list):
                parts = message.content
                if any(
                    part.get("type") != "text" or not isinstance(part.get("text"), str)
                    for part in parts
                ):
                    raise ApiError(
                        f"messages.{index}.content: only text parts are supported",
                        param=f"messages.{index}.content",
                    )
                table["content"] = "".join(part["text"] for part in parts)
            messages.append(table)
        return messages


class _JudgeRequest(_Strict):
    prompt_token_ids: Tokens


class ScoreRequest(_JudgeRequest):
    """`POST /score`."""

    output_token_ids: Tokens
    prefill_length: int | None = Field(default=None, ge=1)
    """Tokens of prompt and output per forward pass; absent: all in one."""


class RecordRequest(_JudgeRequest):
    """`POST /record`."""

    max_tokens: int = Field(ge=1)
    positions: int = Field(ge=1, le=64)
    """Drafted positions per lattice."""


class ProfileRequest(_JudgeRequest):
    """`POST /profile`."""

    max_tokens: int = Field(ge=2)
    """At least 2: the first token comes from the prefill, not from a step."""


class StepTimesRequest(ProfileRequest):
    """`POST /step-times`."""

    positions: int = Field(ge=1, le=64)
    """Drafted positions per step."""
    nodes: Items[Annotated[int, Field(ge=2, le=256)]] = Field(min_length=1, max_length=16)
    """Sizes of the trees, the root included."""


async def read_request(request: Request, model: type[Model]) -> Model:
    """Parse a body.

    Raises:
        ApiError: 400, naming the field; 413 for a body over 16 MiB.
    """
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > MAX_BODY_BYTES:
            raise ApiError(f"the body is over {MAX_BODY_BYTES} bytes", status=413)
    try:
        text = raw.decode(json.detect_encoding(raw))
        body = json.loads(text)
        if _SURROGATE.search(text):
            # Half a surrogate pair is no text and cannot be answered with.
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = str(error).encode(errors="replace").decode()
        raise ApiError(f"the body is not JSON ({reason})") from error
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    _check_nesting(body)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _as_api_error(error, model) from error


def _check_nesting(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_NESTING):
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return
    raise ApiError(f"the body's JSON is nested deeper than {MAX_NESTING} levels")


def _as_api_error(error: ValidationError, model: type[BaseModel]) -> ApiError:
    first = error.errors()[0]
    path = _short(".".join(str(part) for part in first["loc"] if part not in _UNION_TAGS))
    if first["type"] == "extra_forbidden":
        return ApiError(_unknown(path, model), param=path)
    message = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{path}: {message}", param=path)


def _unknown(name: str, model: type[BaseModel]) -> str:
    known = [*model.model_fields, *_NEUTRAL, *_NO_EFFECT]
    # A name may be as long as the body, and looking for its like takes memory for each character.
    close = difflib.get_close_matches(name[:_SHOWN], known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "remove it"
    return f"{_short(name)}: unknown field; {hint}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _same(value: object, neutral: object) -> bool:
    # 1 == True in Python; a boolean where a number belongs is another value.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)

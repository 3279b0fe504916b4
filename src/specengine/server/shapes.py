"""The JSON of answers, as OpenAI's clients read it."""

from collections.abc import Sequence
from typing import Any, Protocol


class Shape(Protocol):
    """One endpoint's objects."""

    def whole(
        self, text: str, tokens: Sequence[int], finish_reason: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        ...

    def opening(self) -> dict[str, Any] | None:
        """The chunk before the first text, if the endpoint has one."""
        ...

    def piece(self, text: str, tokens: Sequence[int], finish_reason: str | None) -> dict[str, Any]:
        """One chunk."""
        ...

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that holds the usage and no choice."""
        ...


class _Shape:
    prefix = ""
    kind = ""
    chunk_kind = ""

    def __init__(self, *, identity: str, created: int, model: str, token_ids: bool) -> None:
        self._head = {"id": f"{self.prefix}-{identity}", "created": created, "model": model}
        self._token_ids = token_ids

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "object": kind, "choices": choices}

    def _choice(
        self, content: dict[str, Any], tokens: Sequence[int], finish_reason: str | None
    ) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        if self._token_ids:
            choice["token_ids"] = list(tokens)
        return choice

    def usage(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk that holds the usage and no choice."""
        return {**self._envelope(self.chunk_kind, []), "usage": usage}


class CompletionShape(_Shape):
    """`/v1/completions`."""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def whole(
        self, text: str, tokens: Sequence[int], finish_reason: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        return {**self.piece(text, tokens, finish_reason), "usage": usage}

    def opening(self) -> None:
        """Completions open with their first text."""

    def piece(self, text: str, tokens: Sequence[int], finish_reason: str | None) -> dict[str, Any]:
        """One chunk."""
        return self._envelope(
            self.chunk_kind, [self._choice({"text": text}, tokens, finish_reason)]
        )


class ChatShape(_Shape):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def whole(
        self, text: str, tokens: Sequence[int], finish_reason: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        """The answer in one piece."""
        message = {"message": {"role": "assistant", "content": text}}
        choice = self._choice(message, tokens, finish_reason)
        return {**self._envelope(self.kind, [choice]), "usage": usage}

    def opening(self) -> dict[str, Any]:
        """The chunk that names the role."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return self._envelope(self.chunk_kind, [self._choice(delta, [], None)])

    def piece(self, text: str, tokens: Sequence[int], finish_reason: str | None) -> dict[str, Any]:
        """One chunk."""
        delta = {"delta": {"content": text} if text else {}}
        return self._envelope(self.chunk_kind, [self._choice(delta, tokens, finish_reason)])

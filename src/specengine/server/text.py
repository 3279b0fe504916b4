"""Text in and out: the target's tokenizer, its chat template, and incremental detokenization."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from specengine.errors import RequestError
from specengine.server.tokenizer_files import read_template, read_tokenizer, token_ids

_REPLACEMENT = "\ufffd"
_CONTEXT = 6
"""Tokens at least that are decoded again before new ones: some decoders treat the first of a text
differently (a leading space), and none looks further back than to where a character began."""
_MAX_PENDING = 32
"""Tokens held back for an unfinished character before they are given out as they are."""
_RESERVED = frozenset(
    ("messages", "conversations", "chat_template", "add_generation_prompt", "self")
)
"""Names that would take the place of what the server passes to the template."""
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""What a template's own expressions end with on values that it was not written for."""


class Detokenizer:
    """Turns tokens into text piece by piece.

    Tokens are taken one at a time, so the joined text does not depend on how many arrive together.
    A character whose bytes are spread over several tokens comes out whole, with the last of them.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._context: list[list[int]] = []
        self._context_length = 0
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that this token completes, often empty."""
        if self._tokenizer is None:
            return ""
        self._pending.append(token)
        text = self._decoded()
        if text.endswith(_REPLACEMENT) and len(self._pending) < _MAX_PENDING:
            return ""
        return self._take(text)

    def finish(self) -> str:
        """The text of tokens still held back; an unfinished character becomes U+FFFD."""
        if self._tokenizer is None or not self._pending:
            return ""
        return self._take(self._decoded())

    def _decoded(self) -> str:
        assert self._tokenizer is not None
        tokens = [*chain.from_iterable(self._context), *self._pending]
        return self._tokenizer.decode(tokens, skip_special_tokens=True)[self._context_length :]

    def _take(self, text: str) -> str:
        if text or not self._context_length:
            # Whole pieces are kept: where bytes stand for characters, one byte of half a character
            # makes a decoder give up all bytes that follow it.
            self._context.append(self._pending)
            while sum(map(len, self._context[1:])) >= _CONTEXT:
                del self._context[0]
        self._pending, self._context_length = [], 0
        self._context_length = len(self._decoded())
        return text


class StopStrings:
    """Cuts text before the first stop string, holding back what may be the start of one.

    Args:
        stops: the strings; the earliest match ends the text, and the match is not part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """The part of all text so far that is now certain to be before any stop string."""
        if self.stopped:
            return ""
        self._held += text
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            certain, self._held = self._held[: min(found)], ""
            return certain
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return certain

    def finish(self) -> str:
        """What was held back, when the output ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without being all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class TextOutput:
    """Text of one output with its stop strings applied.

    Token ids and text relate so: ids hold every emitted token up to the one that completes a stop
    string; the text ends before the stop string, so it may be shorter than its ids. Special tokens
    have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)

    def add(self, tokens: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join(self._stops.add(self._detokenizer.add(token)) for token in tokens)

    def finish(self) -> str:
        """What was held back; call it once, after the last token."""
        last = self._stops.add(self._detokenizer.finish())
        return last + self._stops.finish()

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self._stops.stopped


class TextCodec:
    """The target's tokenizer and chat template.

    A folder without `tokenizer.json` serves token ids alone: strings are refused, texts are empty.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, template: str | None, special_tokens: dict[str, str]
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._special_tokens = special_tokens

    @classmethod
    def load(cls, folder: Path) -> "TextCodec":
        """Read tokenizer and template of a target folder.

        Raises:
            CheckpointError: a file is there and cannot be read.
        """
        tokenizer = read_tokenizer(folder)
        if tokenizer is None:
            return cls(None, None, {})
        return cls(tokenizer, *read_template(folder))

    def encode(self, text: str, where: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds by itself.

        Raises:
            RequestError: there is no tokenizer, or it has no token for a part of the text.
        """
        return token_ids(self._need_tokenizer(where), text, where, special=True)

    def encode_chat(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer.

        Raises:
            RequestError: there is no tokenizer or template, or the template refuses the messages.
        """
        tokenizer = self._need_tokenizer("messages")
        if self._template is None:
            raise RequestError(
                "need a chat template, and the target has none",
                where="messages",
                fix="use /v1/completions",
            )
        taken = _RESERVED & variables.keys()
        if taken:
            raise RequestError(
                f"sets '{min(taken)}', which the server sets itself",
                where="chat_template_kwargs",
                fix="remove it",
            )
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered = render_jinja_template(
                [messages],
                chat_template=self._template,
                add_generation_prompt=True,
                **{**self._special_tokens, **variables},
            )
        except _TEMPLATE_FAILURES as error:
            raise RequestError(
                f"are refused by the target's chat template ({error})",
                where="messages",
                fix="send the roles and fields that the model was trained with",
            ) from error
        text = rendered[0][0] if isinstance(rendered, tuple) else rendered[0]
        return token_ids(tokenizer, text, "messages", special=False)

    def _need_tokenizer(self, where: str) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "is text, and the target folder has no tokenizer.json",
                where=where,
                fix="send token ids",
            )
        return self.tokenizer

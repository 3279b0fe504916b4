"""The target's own chat template and tokenizer, without the model's framework.

Renders what Transformers' `apply_chat_template` renders, so that the judge tokenizes prompts by
itself and every engine gets the same ids.
"""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from specpilot.core.errors import WorkloadError
from specpilot.core.record import read_json_object

_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What a template's own expressions end with on values that it was not written for."""
Message = Mapping[str, str]


class ChatTokenizer:
    """Turns user turns into prompt ids as the target's folder prescribes."""

    def __init__(self, folder: Path) -> None:
        """Read tokenizer and template.

        Raises:
            WorkloadError: a file is missing or malformed, or the folder has no chat template.
        """
        self._folder = folder
        config = read_json_object(
            folder / "tokenizer_config.json", WorkloadError, "restore the target's folder"
        )
        self._special = _special_tokens(config)
        source = _template_source(folder, config)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise self._failure(f"has a malformed chat template ({error})") from error
        self._tokenizer = _load_tokenizer(folder / "tokenizer.json")

    def render(self, messages: Sequence[Message]) -> str:
        """The text that the model reads, up to where its answer starts.

        Raises:
            WorkloadError: the template refuses these messages.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special,
            )
        except _TEMPLATE_FAILURES as error:
            raise self._failure(f"its chat template refuses the messages ({error})") from error

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a rendered text; nothing is added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """Prompt ids of one user turn."""
        return self.encode(self.render([{"role": "user", "content": text}]))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids)))

    def _failure(self, what: str) -> WorkloadError:
        return WorkloadError(what, where=str(self._folder), fix="restore the target's folder")


class _GenerationBlock(Extension):
    """Accepts the tag that marks the assistant's part for training; its content is kept."""

    tags = {"generation"}  # noqa: RUF012 - the attribute's type is set by the base class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    # A link to nothing is a lost file, and not one that its authors left out.
    if os.path.lexists(file):
        return _read_template(file)
    found = config.get("chat_template")
    if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        named = {str(entry.get("name")): entry.get("template") for entry in found}
        found = named.get("default")
    if isinstance(found, str):
        return found
    raise WorkloadError(
        "has no chat template", where=str(folder), fix="use an instruction-tuned target"
    )


def _read_template(file: Path) -> str:
    fix = "restore the target's folder"
    if file.exists() and not file.is_file():
        raise WorkloadError("is no regular file", where=str(file), fix=fix)
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"cannot be read ({error})", where=str(file), fix=fix) from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _load_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise WorkloadError("does not exist", where=str(path), fix="restore the target's folder")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        # The binding raises nothing narrower.
        raise WorkloadError(
            f"cannot be read ({error})", where=str(path), fix="restore the target's folder"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer

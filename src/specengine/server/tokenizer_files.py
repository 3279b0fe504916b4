"""What a target's folder says about text: its tokenizer, chat template and special tokens.

A file that is absent is left out by its authors; one that is there must be whole.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specengine.errors import CheckpointError, RequestError
from specengine.shards import is_there, read_json, read_text

_DOWNLOAD = "download the checkpoint again"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer of `tokenizer.json`; None where there is none.

    Raises:
        CheckpointError: the file is there and cannot be read.
    """
    path = folder / "tokenizer.json"
    if not is_there(path):
        return None
    text = read_text(path)
    try:
        return Tokenizer.from_str(text)
    # The library raises bare Exception for every defect of the file.
    except Exception as error:
        raise CheckpointError(
            f"cannot be read ({error})", where=str(path), fix=_DOWNLOAD
        ) from error


def token_ids(tokenizer: Tokenizer, text: str, where: str, *, special: bool) -> list[int]:
    """Ids of a text; other threads run meanwhile.

    Args:
        where: names the text in errors.
        special: add the special tokens that the tokenizer adds by itself.

    Raises:
        RequestError: the tokenizer has no token for a part of the text.
    """
    try:
        # As a batch of one: only for batches does the library let other threads run meanwhile, and
        # the engine's thread and all streams would wait for a long text otherwise.
        return tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
    # The library raises bare Exception where it has no token for a part of the text.
    except Exception as error:
        raise RequestError(
            f"cannot be encoded ({error})", where=where, fix="leave out what the tokenizer lacks"
        ) from error


def read_template(folder: Path) -> tuple[str | None, dict[str, str]]:
    """The chat template, None where there is none, and the special tokens that it may name.

    Raises:
        CheckpointError: a file is there and cannot be read, or its template is no text.
    """
    path = folder / "tokenizer_config.json"
    table = read_json(path) if is_there(path) else {}
    separate = folder / "chat_template.jinja"
    template = read_text(separate) if is_there(separate) else _stated_template(table, path)
    special = {}
    for name in _SPECIAL:
        value = table.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            special[name] = token
    return template, special


def _stated_template(table: dict[str, Any], path: Path) -> str | None:
    """One template, or the default of several named ones."""
    stated = table.get("chat_template")
    if isinstance(stated, list) and all(isinstance(entry, dict) for entry in stated):
        named = {str(entry.get("name")): entry.get("template") for entry in stated}
        stated = named.get("default")
    if stated is not None and not isinstance(stated, str):
        raise CheckpointError(
            f"chat_template is {stated!r:.60}: it must be text, or a list of named templates",
            where=str(path),
            fix=_DOWNLOAD,
        )
    return stated

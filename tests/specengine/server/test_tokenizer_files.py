"""Tokenizer, template and special tokens of a folder: absent is fine, broken is one line."""

import json
import os
from pathlib import Path

import pytest

from specengine.errors import CheckpointError, RequestError
from specengine.server.text import TextCodec

DEEP = "[" * 100_000


@pytest.fixture
def folder(tiny_tokenizer, chat_template, tmp_path):
    """The text part of a target's folder."""
    tiny_tokenizer.save(str(tmp_path / "tokenizer.json"))
    table = {"chat_template": chat_template, "eos_token": {"content": "<eos>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(table))
    return tmp_path


def test_what_the_folder_says_is_used(folder, chat_template):
    turn = [{"role": "user", "content": "hi"}]
    ids = TextCodec.load(folder).encode_chat(turn, {})
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (folder / "chat_template.jinja").write_text(chat_template)
    assert TextCodec.load(folder).encode_chat(turn, {}) == ids
    named = [{"name": "other", "template": "x"}, {"name": "default", "template": chat_template}]
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "chat_template": named})
    )
    assert TextCodec.load(folder).encode_chat(turn, {}) == ids


def test_what_is_absent_is_left_out(folder):
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(RequestError, match="has none"):
        TextCodec.load(folder).encode_chat([], {})
    (folder / "tokenizer.json").unlink()
    assert TextCodec.load(folder).tokenizer is None


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{}"), ("tokenizer.json", b"\xff\xfe"), ("tokenizer.json", ""),
        ("tokenizer_config.json", "[]"), ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", b'{"a": "\xe9"}'), ("tokenizer_config.json", DEEP),
        ("tokenizer_config.json", '{"chat_template": 7}'),
        ("tokenizer_config.json", '{"chat_template": [1]}'),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default", "template": 7}]}'),
        ("chat_template.jinja", b"\xff"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_in_one_line(folder, file, content):
    data = content if isinstance(content, bytes) else content.encode()
    (folder / file).write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        TextCodec.load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / file))
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "lost"])
def test_a_name_without_a_file_behind_it_is_no_absent_file(folder, file, kind):
    path = folder / file
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "lost": lambda p: p.symlink_to("gone")}[kind](path)
    with pytest.raises(CheckpointError, match=file):
        TextCodec.load(folder)


@pytest.mark.parametrize(
    "template",
    ["{% for %}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{{ raise_exception('no') }}", "{{ x.y.z }}",
     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"],
)  # fmt: skip
def test_a_template_that_fails_refuses_the_messages(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    codec = TextCodec.load(folder)
    with pytest.raises(RequestError, match="chat template") as caught:
        codec.encode_chat([{"role": "user", "content": "hi"}], {})
    assert "\n" not in str(caught.value)

"""Odd request files and templates: one line each, no traceback, no wait."""

import gzip
import json
import os
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from specpilot.core.errors import WorkloadError
from specpilot.workload.benchmarks import prompts_of
from specpilot.workload.chat import ChatTokenizer
from specpilot.workload.sources import read_file

DAMAGED = bytearray(gzip.compress(os.urandom(5000)))
DAMAGED[200:300] = b"\xff" * 100


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("p.jsonl", b"[" * 100_000), ("p.json", b"[" * 100_000), ("p.jsonl.gz", bytes(DAMAGED)),
        ("p.jsonl", None), ("p.parquet", None), ("a" * 5000, b""), ("a\0b", b""),
    ],
    ids=["deep lines", "deep list", "damaged gzip", "pipe", "parquet pipe", "long", "null"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, name: str, data: bytes | None
) -> None:
    path = tmp_path / name
    if data is None:
        os.mkfifo(path)
    elif data:
        path.write_bytes(data)
    with pytest.raises(WorkloadError) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('\ufeff{"prompt": "a"}\n', encoding="utf-8")
    assert read_file(tmp_path / "p.jsonl") == [{"prompt": "a"}]


def test_half_a_surrogate_pair_is_no_prompt() -> None:
    with pytest.raises(WorkloadError, match="row 0 holds no prompt"):
        prompts_of("own", [json.loads('{"prompt": "\\ud800 x"}')], "p.jsonl")


def write_target(folder: Path, template: object) -> Path:
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(folder / "tokenizer.json"))
    table = json.dumps({"chat_template": template})
    (folder / "tokenizer_config.json").write_text(table, encoding="utf-8")
    return folder


@pytest.mark.parametrize("template", [
    "{{ messages + 1 }}", "{{ 1 / 0 }}", "{{ x.y.z }}", "{{ strftime_now(7) }}", [1], [{"n": 1}],
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% for i in range(10**9) %}{% endfor %}",
])  # fmt: skip
def test_a_template_that_fails_is_the_folders_fault(tmp_path: Path, template: object) -> None:
    with pytest.raises(WorkloadError, match="template") as caught:
        ChatTokenizer(write_target(tmp_path, template)).encode_turn("a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_name_without_a_file_behind_it_is_no_absent_file(tmp_path: Path, file: str) -> None:
    folder = write_target(tmp_path, "x")
    (folder / file).unlink(missing_ok=True)
    (folder / file).symlink_to("gone")
    with pytest.raises(WorkloadError, match=file):
        ChatTokenizer(folder)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(WorkloadError, match="no regular file"):
        ChatTokenizer(folder)
    (folder / file).unlink()
    (folder / file).write_bytes(b"\xff")
    with pytest.raises(WorkloadError, match=file):
        ChatTokenizer(folder)

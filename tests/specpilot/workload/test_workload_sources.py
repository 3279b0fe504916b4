"""Rows of the five benchmarks become the user turns that the paper's setup names."""

import gzip
import json
import os
from pathlib import Path

import pytest

from specpilot.core.deployment import BENCHMARKS
from specpilot.core.errors import WorkloadError
from specpilot.workload.benchmarks import prompts_of
from specpilot.workload.hub import choose_file
from specpilot.workload.sources import read_builtin, read_file, read_source

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("SPECPILOT_DATA", ROOT.parent / "shared" / "data"))


def text_of(benchmark: str, row: dict[str, object]) -> str:
    (prompt,) = prompts_of(benchmark, [row], "test")
    assert prompt.id == f"{benchmark}/0"
    return prompt.text


def test_each_native_format_gives_its_exact_prompt() -> None:
    assert text_of("gsm8k", {"question": "How many?", "answer": "3"}) == "How many?"
    assert (
        text_of("math500", {"problem": "Find $x$."})
        == "Find $x$.\nPut your final answer in \\boxed{}."
    )
    code = 'def f():\n    """Return 1."""\n'
    assert (
        text_of("humaneval", {"prompt": code, "entry_point": "f"})
        == f"Complete the following Python function.\n\n```python\n{code}```"
    )
    tests = ["assert f() == 1", "assert f() > 0"]
    expected = "Do it.\nYour code should pass these tests:\n\nassert f() == 1\nassert f() > 0"
    assert text_of("mbpp", {"text": "Do it.", "test_list": tests}) == expected
    assert text_of("mbpp", {"prompt": "Do it.", "test_list": tests}) == expected
    assert text_of("mt_bench", {"turns": ["Hello.", "Again."]}) == "Hello."


@pytest.mark.parametrize("benchmark", [*BENCHMARKS, "own"])
def test_plain_prompt_rows_are_taken_as_they_are(benchmark: str) -> None:
    assert text_of(benchmark, {"prompt": "Say hi."}) == "Say hi."


@pytest.mark.parametrize("benchmark", [*BENCHMARKS, "own"])
def test_a_row_without_a_prompt_names_row_and_format(benchmark: str) -> None:
    rows = [{"prompt": "Say hi."}, {"something": 1}]
    with pytest.raises(WorkloadError, match=r"file: row 1 holds no prompt"):
        prompts_of(benchmark, rows, "file")


def test_a_repeated_text_is_one_prompt() -> None:
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}]
    assert [prompt.id for prompt in prompts_of("own", rows, "file")] == ["own/0", "own/1"]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_ten_or_more_own_prompts_ship_in_native_format(benchmark: str) -> None:
    rows, where = read_source(benchmark, "builtin")
    assert len(prompts_of(benchmark, rows, where)) >= 10
    assert all("prompt" not in row or benchmark == "humaneval" for row in read_builtin(benchmark))


def test_jsonl_json_and_gzip_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [{"prompt": "a\u2028b"}, {"prompt": "c"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    plain, packed, listed = (tmp_path / f"rows.{end}" for end in ("jsonl", "jsonl.gz", "json"))
    plain.write_text(lines, encoding="utf-8")
    packed.write_bytes(gzip.compress(lines.encode()))
    listed.write_text(json.dumps(rows), encoding="utf-8")
    assert read_file(plain) == read_file(packed) == read_file(listed) == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"prompt": "a"}\n{"prompt": ', "line 2"),
        ("rows.jsonl", b"[1]\n", "not an object"),
        ("rows.json", b'{"prompt": "a"}', "not a list of objects"),
        ("rows.jsonl.gz", b"plain", "cannot be read"),
        ("rows.jsonl", b"\xff\xfe", "cannot be read"),
        ("missing.jsonl", None, "cannot be read"),
    ],
)
def test_malformed_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WorkloadError, match=message) as caught:
        read_file(path)
    assert name in str(caught.value)


def test_hub_files_are_chosen_and_unknown_names_refused() -> None:
    assert choose_file(["README.md", "a.parquet", "train.jsonl", "test.jsonl"]) == "test.jsonl"
    both = ["socratic/test-0.parquet", "main/train-0.parquet", "main/test-0.parquet"]
    assert choose_file(both) == "main/test-0.parquet"
    assert choose_file(["README.md", "a.csv"]) is None
    with pytest.raises(WorkloadError, match="give its file"):
        read_source("own", None)
    with pytest.raises(WorkloadError, match="no prompts ship"):
        read_source("own", "builtin")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no benchmark data in {DATA}")
@pytest.mark.parametrize(
    ("benchmark", "file", "rows"),
    [
        ("gsm8k", "gsm8k/test.jsonl", 1319),
        ("math500", "math500/test.jsonl", 500),
        ("humaneval", "humaneval/HumanEval.jsonl.gz", 164),
        ("mbpp", "mbpp/mbpp.jsonl", 974),
        ("mbpp", "mbpp/sanitized-mbpp.json", 427),
        ("mt_bench", "mt_bench/question.jsonl", 80),
    ],
)
def test_the_published_files_load(benchmark: str, file: str, rows: int) -> None:
    found = read_file(DATA / file)
    assert len(found) == rows
    # Few questions occur twice in the published files.
    assert len(prompts_of(benchmark, found, file)) > rows * 0.98

"""Outputs of any other server can be forced from a file; malformed lines are named."""

import json
from pathlib import Path

import pytest

from specpilot.core.errors import WorkloadError
from specpilot.forcing.outputs import read_outputs

GOOD = {"prompt_token_ids": [1, 2], "output_token_ids": [3, 4], "max_new_tokens": 2}


def test_lines_are_read_with_and_without_ids(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    lines = [json.dumps(GOOD), "", json.dumps(GOOD | {"request_id": "gsm8k/3"})]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    first, second = read_outputs(path, 10)
    assert (first.request_id, second.request_id) == ("1", "gsm8k/3")
    assert second.output_token_ids == (3, 4)
    assert not second.ends_early(frozenset({9}))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: is not an object"),
        (json.dumps(GOOD | {"output_token_ids": [10]}), "token id 10 is outside"),
        (json.dumps(GOOD | {"output_token_ids": [-1]}), r"key 'output_token_ids\.0'"),
        (json.dumps(GOOD | {"output_token_ids": []}), "no output"),
        (json.dumps(GOOD | {"text": "x"}), "key 'text'"),
        (json.dumps({"output_token_ids": [1]}), "key 'prompt_token_ids'"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=message):
        read_outputs(path, 10)


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_outputs(tmp_path / "none.jsonl", 10)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(WorkloadError, match="holds no output"):
        read_outputs(tmp_path / "empty.jsonl", 10)

"""Safetensors headers and indexes that lie: each is refused in one line that names the file."""

import json
from pathlib import Path
from typing import Any

import pytest

from specengine.errors import CheckpointError
from specengine.shards import check_shards, read_json, shard_headers

DATA = bytes(range(48))
HONEST = {
    "a": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 16]},
    "b": {"dtype": "F32", "shape": [8], "data_offsets": [16, 48]},
}


def _write(path: Path, header: Any, data: bytes = DATA, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)


def _entry(**changes: Any) -> dict[str, Any]:
    return {**HONEST, "a": {**HONEST["a"], **changes}}


FORGERIES: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "corrupt header"),
    "no UTF-8": (b'{"\xff": 1}', "corrupt header"),
    "a list": ([1, 2], "not a JSON object"),
    "a number": (3, "not a JSON object"),
    "deep nesting": (b"[" * 200_000, "nested too deeply"),
    "a name twice": (b'{"a": 1, "a": 2}', "appears twice"),
    "a name of escapes": ({"\x1b[2J": HONEST["a"]}, "cannot be shown"),
    "a lone surrogate": (b'{"\\ud800": {}}', "cannot be shown"),
    "an entry that is a list": ({"a": []}, "no JSON object"),
    "an unknown dtype": (_entry(dtype="BF17"), "unknown dtype 'BF17'"),
    "a dtype that is a list": (_entry(dtype=["BF16"]), "unknown dtype"),
    "no shape": ({"a": {"dtype": "BF16", "data_offsets": [0, 16]}}, "impossible shape None"),
    "a negative size": (_entry(shape=[-2, -4]), "impossible shape"),
    "a fraction": (_entry(shape=[2.0, 4]), "impossible shape"),
    "a truth value": (_entry(shape=[True, 8]), "impossible shape"),
    "a huge size": (_entry(shape=[10**30, 4]), "impossible shape"),
    "many dimensions": (_entry(shape=[1] * 65), "impossible shape"),
    "another shape": (_entry(shape=[2, 5]), "'a' has 16 bytes, its shape needs 20"),
    "a range of words": (_entry(data_offsets=["0", "16"]), "impossible byte range"),
    "a range of one": (_entry(data_offsets=[0]), "impossible byte range"),
    "a backward range": (_entry(data_offsets=[16, 0]), "impossible byte range"),
    "a range before the data": (_entry(data_offsets=[-16, 0]), "impossible byte range"),
    "an overlap": (_entry(data_offsets=[8, 24]), "before tensor 'a'"),
    "the same bytes twice": ({**HONEST, "c": HONEST["a"]}, "'a' and 'c' overlap"),
    "a hole": ({"b": HONEST["b"]}, "before tensor 'b' that belong to none"),
    "a range beyond the data": (
        {"a": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}},
        "truncated or padded",
    ),
    "bytes of nobody": ({"a": HONEST["a"]}, "truncated or padded"),
    "no tensors": ({"__metadata__": {"format": "pt"}}, "truncated or padded"),
}


@pytest.mark.parametrize("kind", FORGERIES)
def test_a_forged_header_is_one_line_that_names_the_file(kind: str, tmp_path: Path) -> None:
    header, message = FORGERIES[kind]
    path = tmp_path / "model.safetensors"
    _write(path, header)
    with pytest.raises(CheckpointError) as caught:
        check_shards(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_an_honest_header_is_read(tmp_path: Path) -> None:
    empty = {"dtype": "F16", "shape": [0, 3], "data_offsets": [16, 16]}
    _write(tmp_path / "model.safetensors", {"__metadata__": {"by": "me"}, "c": empty, **HONEST})
    ((tensors, raw),) = shard_headers(tmp_path).values()
    assert [(one.name, one.begin - len(raw), one.nbytes) for one in tensors] == [
        ("a", 0, 16),
        ("c", 16, 0),
        ("b", 16, 32),
    ]


@pytest.mark.parametrize("length", [10**6, 10**8 + 1, 2**63, 2**64 - 1])
def test_headers_longer_than_their_file_are_not_read(length: int, tmp_path: Path) -> None:
    _write(tmp_path / "model.safetensors", HONEST, length=length)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is (truncated|no safeten)"):
        check_shards(tmp_path)


def test_files_of_a_few_bytes_are_truncated(tmp_path: Path) -> None:
    for size in (0, 7):
        (tmp_path / "model.safetensors").write_bytes(bytes(size))
        with pytest.raises(CheckpointError, match=f"is truncated \\({size} bytes"):
            check_shards(tmp_path)


def test_a_checkpoint_without_tensors_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "model.safetensors", {}, b"")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        check_shards(tmp_path)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({}, "has no weight_map"),
        (None, "has no weight_map"),
        (["one.safetensors"], "has no weight_map"),
        ({"a": "../model/one.safetensors"}, "is no file name"),
        ({"a": "/etc/passwd"}, "is no file name"),
        ({"a": ".."}, "is no file name"),
        ({"a": ""}, "is no file name"),
        ({"a": "o\0ne"}, "is no file name"),
        ({"a": 3}, "is no file name"),
        ({"a": ["one.safetensors"]}, "is no file name"),
        ({"a": "none.safetensors"}, "none.safetensors: is missing"),
        ({"a": "one.safetensors", "z": "one.safetensors"}, "holds tensor 'z', which it does not"),
        ({"a": "one.safetensors", "b": "two.safetensors"}, "holds tensor 'a', as one.safe"),
    ],
)
def test_a_forged_index_is_one_line(places: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("one.safetensors", "two.safetensors"):
        _write(folder / name, HONEST)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError) as caught:
        check_shards(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json: is not valid JSON"):
        read_json(path)

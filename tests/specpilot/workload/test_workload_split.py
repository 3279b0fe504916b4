"""The split is seeded, disjoint, and cannot be changed later."""

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.core.errors import DamagedRun, Refused, WorkloadError
from specpilot.core.requests import Request
from specpilot.workload.benchmarks import Prompt
from specpilot.workload.private_files import draw_secret, kept_secret
from specpilot.workload.split import Split, choose, load_split, store_split


def make_prompts(count: int) -> list[Prompt]:
    return [Prompt(id=f"own/{i}", benchmark="own", text=f"question {i}") for i in range(count)]


def make_split() -> Split:
    def request(name: str, ids: tuple[int, ...]) -> Request:
        return Request(id=name, benchmark="own", prompt_token_ids=ids, max_new_tokens=8)

    return Split(development=(request("own/0", (1, 2)),), sealed=(request("own/1", (3,)),))


@given(
    count=st.integers(2, 40),
    seed=st.integers(-(2**40), 2**40),
    shuffle=st.randoms(use_true_random=False),
    data=st.data(),
)
def test_sides_are_disjoint_and_do_not_depend_on_the_order_of_rows(
    count: int, seed: int, shuffle: object, data: st.DataObject
) -> None:
    prompts = make_prompts(count)
    development = data.draw(st.integers(1, count - 1))
    sealed = data.draw(st.integers(1, count - development))
    first = choose(prompts, development, sealed, seed, "s")
    assert (len(first[0]), len(first[1])) == (development, sealed)
    assert not {p.text for p in first[0]} & {p.text for p in first[1]}
    shuffle.shuffle(prompts)  # type: ignore[attr-defined]
    assert choose(prompts, development, sealed, seed, "s") == first


def test_another_seed_gives_another_split() -> None:
    prompts = make_prompts(40)
    assert choose(prompts, 10, 10, 0, "s") != choose(prompts, 10, 10, 1, "s")


def test_too_few_prompts_name_the_numbers() -> None:
    with pytest.raises(WorkloadError, match="own has 5 different prompts; 3 development and 3"):
        choose(make_prompts(5), 3, 3, 0, "s")


def test_a_split_is_stored_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "sealed" / "requests.json"
    split = make_split()
    store_split(split, path)
    store_split(split, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["requests.json"]
    assert load_split(path) == split
    swapped = Split(development=split.sealed, sealed=split.development)
    with pytest.raises(Refused, match="another split"):
        store_split(swapped, path)
    assert load_split(path) == split


def test_tampering_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    split = make_split()
    store_split(split, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["sealed"][0]["prompt_token_ids"] = [4]
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DamagedRun, match="the sealed requests are not those"):
        load_split(path).verify(split.development_hash, split.sealed_hash)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DamagedRun, match="cannot be read"):
        load_split(path)


def test_hashes_verify_the_same_split() -> None:
    split = make_split()
    assert split.verify(split.development_hash, split.sealed_hash) is split
    with pytest.raises(DamagedRun, match="the development requests"):
        split.verify(split.sealed_hash, split.sealed_hash)


def test_who_knows_rows_and_seed_does_not_know_the_split() -> None:
    prompts = make_prompts(40)
    assert choose(prompts, 10, 10, 0, "s") != choose(prompts, 10, 10, 0, "t")


def test_a_secret_is_drawn_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "sealed" / "secret"
    secret = kept_secret(path, draw_secret)

    assert kept_secret(path, draw_secret) == secret
    assert draw_secret() != secret
    assert len(secret) == 64
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    for content in (b"", b"short", b"\xff" * 64):
        path.chmod(0o600)
        path.write_bytes(content)
        with pytest.raises(DamagedRun):
            kept_secret(path, draw_secret)


def test_a_lost_secret_is_not_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "sealed" / "secret"
    with pytest.raises(DamagedRun, match="FileNotFoundError"):
        kept_secret(path, draw_secret, known=True)
    assert not path.exists()

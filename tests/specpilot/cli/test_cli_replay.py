"""`specpilot replay` from outside: tables, files, and one line for every bad input."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from specengine.trees import make_builder
from specpilot.cli.main import run
from specpilot.costmodel.replay_table import TREES

COSTS = ["--step-seconds", "1=0.02,8=0.021,32=0.03"]


def arrays(seed: int, steps: int = 24, positions: int = 6) -> dict[str, np.ndarray]:
    """One recording whose drafter often holds the right token."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 12, steps + 1)
    ids = np.stack([[rng.permutation(12)[:4] for _ in range(positions)] for _ in range(steps)])
    edge = np.log(rng.dirichlet(np.ones(4), size=(steps, positions, 4))).astype(np.float32)
    edge[:, 0] = edge[:, 0, :1]
    return {"tokens": tokens, "ids": ids, "edge": edge}


def save(path: Path, requests: dict[str, dict[str, np.ndarray]], named: bool = True) -> None:
    found = {}
    for index, (name, fields) in enumerate(requests.items()):
        found |= {f"{index}.{key}": value for key, value in fields.items()}
        if named:
            found[f"{index}.request_id"] = np.array(name)
    np.savez(path, **found)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_trees_on_all_benchmarks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(here / "a.npz", {f"gsm8k/{i}": arrays(i) for i in range(4)})
    save(here / "b.npz", {f"mbpp/{i}": arrays(10 + i) for i in range(3)}, named=False)
    command = ["replay", "a.npz", "b.npz", "--nodes", "16,4", "--json", "--out", "found", *COSTS]
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trees"] == list(TREES)
    assert set(found["benchmarks"]) == {"gsm8k", "b"}
    assert [file["requests"] for file in found["files"]] == [4, 3]
    assert any("cross-fitted" in note for note in found["notes"])
    taus = {(row["tree"], row["nodes"]): row["tau"] for row in found["rows"]}
    for tree in set(TREES) - {"oracle"}:
        assert taus[tree, 16] <= taus["oracle", 16] + 1e-9
    for row in found["rows"]:
        assert row["interval"][0] <= row["tau"] <= row["interval"][1]
        assert (row["value_per_node"] is None) == (row["nodes"] == 4)
        assert row["over_reference"] == pytest.approx(row["tau"] - taus["best_first", row["nodes"]])
    assert found["written"] == [
        "found/replay.json", "found/tau_over_nodes.svg", "found/tau_over_nodes.csv"
    ]  # fmt: skip
    stored = json.loads((here / "found/replay.json").read_text())
    assert stored["rows"] == found["rows"]
    ElementTree.parse(here / "found/tau_over_nodes.svg")
    with (here / "found/tau_over_nodes.csv").open() as file:
        lines = list(csv.DictReader(file))
    at_16 = [float(line["tau"]) for line in lines if line["nodes"] == "16"]
    assert at_16 == [pytest.approx(taus["best_first", 16])]
    levels = {line["curve"]: float(line["tau"]) for line in lines if line["nodes"] == ""}
    assert levels["oracle, 6 positions"] == pytest.approx(taus["oracle", 16])


def test_an_answer_of_record_is_a_recording(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("answer.npz", **arrays(0))
    assert run(["replay", "answer.npz", "--nodes", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["benchmarks"]) == {"answer"}
    assert "sequoia" not in found["trees"]
    assert any("left out" in note for note in found["notes"])
    assert {row["interval"] for row in found["rows"]} == {None}


def test_people_get_tables(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(here / "a.npz", {"gsm8k/0": arrays(0), "mbpp/1": arrays(1)})
    assert run(["replay", "a.npz", "--nodes", "4", "--trees", "chain,sequoia"]) == 0
    shown = capsys.readouterr().out
    for text in ("exact replay, 2 requests, 6 positions", "per benchmark", "mbpp", "sha256"):
        assert text in shown


def test_fitted_parameters_become_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(here / "a.npz", {f"gsm8k/{i}": arrays(i) for i in range(3)})
    command = ["replay", "a.npz", "--nodes", "8", "--trees", "chain", "--fit", "fitted", *COSTS]
    assert run([*command, "--json"]) == 0
    best_first, *others = json.loads(capsys.readouterr().out)["fitted"]
    make_builder("best_first", temperature=best_first["tree_temperature"])
    assert [options["tree"] for options in others] == ["calibrated", "sequoia", "caddtree"]
    for options in others:
        make_builder(options["tree"], file=options["tree_file"])
    assert run(command) == 0
    assert 'fitted: tree = "sequoia", tree_file = "fitted/sequoia.json"' in capsys.readouterr().out


def test_processes_share_the_requests(here: Path) -> None:
    save(here / "a.npz", {f"gsm8k/{i}": arrays(i) for i in range(5)})
    # In a process of its own: forking wants one without threads.
    start = "import sys; from specpilot.cli.main import main; sys.argv[0] = 'specpilot'; main()"
    found = [
        subprocess.run(
            [sys.executable, "-c", start, "replay", "a.npz", "--nodes", "4,9", "--json",
             "--workers", workers, *COSTS],
            check=True, capture_output=True, timeout=300,
        ).stdout
        for workers in ("1", "3")
    ]  # fmt: skip
    assert found[0] == found[1]
    assert len(json.loads(found[0])["rows"]) == 2 * len(TREES)


def broken(**changes: object) -> dict[str, np.ndarray]:
    return arrays(0) | {key: np.asarray(value) for key, value in changes.items()}


def twice() -> np.ndarray:
    ids = arrays(0)["ids"].copy()
    ids[3, 2, 1] = ids[3, 2, 0]
    return ids


def forged(key: str, value: float) -> dict[str, np.ndarray]:
    """A recording with one number of an array replaced."""
    fields = arrays(0)
    fields[key][3:4].reshape(-1)[0] = value
    return fields


BAD_FILES = {
    "floats for tokens": (broken(tokens=np.zeros(25)), "is not a file of recordings"),
    "a square of tokens": (broken(tokens=np.zeros((5, 5), dtype=int)), "not a file of recordings"),
    "short ids": (broken(ids=arrays(0)["ids"][:5]), "record the request again"),
    "edges of another width": (broken(edge=arrays(0)["edge"][..., :3]), "record the request again"),
    "NaN": (broken(edge=np.full((24, 6, 4, 4), np.nan, dtype=np.float32)), "non-finite"),
    "a candidate twice": (broken(ids=twice()), "names a candidate twice"),
    "a candidate below 0": (forged("ids", -2), "ids below 0"),
    "a token below 0": (forged("tokens", -2), "ids below 0"),
    "ids beyond 63 bits": (
        broken(ids=arrays(0)["ids"].astype(np.uint64) + np.uint64(2**63)),
        "ids below 0",
    ),
    "scores above 0": (forged("edge", 3.0), "no log-probability"),
    "no candidates": (
        broken(ids=np.zeros((24, 6, 0), int), edge=np.zeros((24, 6, 0, 0))),
        "empty lattice",
    ),
    "one token": (broken(tokens=np.array([3])), "holds no drafted position"),
    "objects": (broken(tokens=np.array([None] * 25)), "is not a file of recordings"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_end_in_one_line(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields, message = BAD_FILES[kind]
    np.savez("bad.npz", **fields)
    check_refused(["replay", "bad.npz"], message, capsys)


def check_refused(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut short"])
def test_files_of_another_kind(
    content: bytes, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "other.npz").write_bytes(content)
    check_refused(["replay", "other.npz"], "is not a file of recordings", capsys)


def test_requests_have_one_name_each(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(here / "a.npz", {"gsm8k/0": arrays(0) | {"request_id": np.array(["x/1", "y/2"])}}, False)
    check_refused(["replay", "a.npz"], "request_id of shape (2,)", capsys)


def test_the_same_recording_twice_is_no_more_evidence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(here / "a.npz", {"gsm8k/0": arrays(0)})
    (here / "b.npz").write_bytes((here / "a.npz").read_bytes())
    check_refused(["replay", "a.npz", "b.npz"], "b.npz: is the same recording as a.npz", capsys)


@pytest.mark.parametrize("folder", ["[red]", ":smile:", "a[", "line\nbreak"])
def test_names_are_shown_as_they_are(
    folder: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / folder).mkdir()
    save(here / folder / "b].npz", {"[bold]/0": arrays(0), ":x:/1": arrays(1)})
    out = f"{folder}/found"
    command = ["replay", f"{folder}/b].npz", "--nodes", "4", "--trees", "chain", "--out", out]
    assert run(command) == 0
    shown = capsys.readouterr().out
    for text in (f"{folder}/b].npz  sha256", f"written: {out}/replay.json"):
        assert text.replace("\n", "\\n") in shown
    assert "[bold]" in shown
    assert ":x:" in shown


def test_a_truncated_archive(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(here / "a.npz", {"gsm8k/0": arrays(0)})
    (here / "cut.npz").write_bytes((here / "a.npz").read_bytes()[:-500])
    check_refused(["replay", "cut.npz"], "is not a file of recordings", capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trees", "bestfirst"], "did you mean 'best_first'"),
        (["--trees", "sequoia"], "holds one request"),
        (["--trees", "caddtree"], "give --step-seconds"),
        (["--positions", "7"], "hold 6 positions"),
        (["--nodes", "300"], "not a list of budgets"),
        (["--step-seconds", "8=x"], "not times of steps"),
        (["--step-seconds", "8=0.1"], "not times of steps"),
        (["--step-seconds", "8=0.1,16=nan"], "not times of steps"),
        (["--out", "a.npz/under"], "Not a directory"),
    ],
)
def test_senseless_options(
    options: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("a.npz", **arrays(0))
    check_refused(["replay", "a.npz", *options], message, capsys)


def test_recordings_of_two_drafters_fit_no_tree_together(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = arrays(1)
    wide |= {"ids": wide["ids"][..., :3], "edge": wide["edge"][..., :3, :3]}
    save(here / "a.npz", {"gsm8k/0": arrays(0), "gsm8k/1": wide, "gsm8k/2": arrays(2)})
    check_refused(["replay", "a.npz"], "lattices of [3, 4] candidates", capsys)

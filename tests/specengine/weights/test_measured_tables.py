"""Figures in docs/weights.md are those of benchmarks/results."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "weights.md").read_text()
SHAPES = ("gdn_in_proj", "out_proj", "attention_qkv", "gate_up", "down", "lm_head")


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    return found


GPU = _results("weights")


def _table(marker: str) -> list[tuple[str, list[list[float]]]]:
    """Rows of the first table behind a text: the first cell, and the numbers of each other one."""
    _, found, rest = PAGE.partition(marker)
    assert found, marker
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table is not None
    rows = [line.strip("|").split("|") for line in table[0].splitlines()]
    return [
        (row[0].strip(), [[float(n) for n in re.findall(r"\d+\.?\d*", cell)] for cell in row[1:]])
        for row in rows[2:]
    ]


def _same(written: list[float], measured: dict[str, float], digits: int) -> None:
    """A median alone, or with its range."""
    wanted = [measured[key] for key in ("median", "low", "high")][: len(written)]
    assert written == pytest.approx(wanted, abs=0.5001 * 10**-digits)


def _product(shape: str, rows: int, mode: str, kernel: str) -> dict[str, Any]:
    (line,) = (r for r in GPU["results"] if (r["shape"], r["rows"]) == (shape, rows))
    found: dict[str, Any] = line[mode][kernel]
    return found


@pytest.mark.parametrize(
    ("marker", "kernel", "over"),
    [
        ("cuBLAS BF16 with dependent launches, in bursts", "w12 pdl", "over_cublas"),
        ("**W11s over W12**", "w11s pdl", "over_w12"),
        ("**Low-bit copies**", "e2m4 pdl", "over_cublas"),
    ],
)
def test_ratios_of_products(marker: str, kernel: str, over: str) -> None:
    table = _table(marker)
    assert len(table) >= 3
    for rows, cells in table:
        for shape, cell in zip(SHAPES, cells, strict=True):
            assert len(cell) == 3
            _same(cell, _product(shape, int(rows), "burst", kernel)[over], 2)


def test_times_of_one_row() -> None:
    (_, cublas), (_, ours), (_, speeds) = _table("1.32 [1.32, 1.33] |\n\n")
    for index, shape in enumerate(SHAPES):
        packed = _product(shape, 1, "burst", "w12 pdl")
        digits = 0 if shape == "lm_head" else 1
        _same(cublas[index], _product(shape, 1, "burst", "cublas")["microseconds"], digits)
        _same(ours[index], packed["microseconds"], digits)
        wanted = [packed["terabytes_per_second"], packed["of_read_ceiling"]]
        assert speeds[index] == pytest.approx(wanted, abs=0.00501)


def test_launches_and_power() -> None:
    table = _table("Median ratios to cuBLAS:")
    assert len(table) == 16
    kernel, rows = "", 0
    for label, cells in table:
        named = re.match(r"(W1\w+), (\d+) row", label)
        if named:
            kernel, rows = named[1].lower(), int(named[2])
        mode = "sustained" if "sustained" in label else "burst"
        launches = "pdl" if "dependent" in label else "no_pdl"
        for shape, cell in zip(SHAPES, cells, strict=True):
            _same(cell, _product(shape, rows, mode, f"{kernel} {launches}")["over_cublas"], 2)


def test_ratios_on_other_gpus_kernel() -> None:
    for label, cells in _table("## Other GPUs"):
        kernel, rows = re.findall(r"\w+", label)
        for shape, cell in zip(SHAPES, cells, strict=True):
            _same(cell, _product(shape, int(rows), "burst", f"{kernel} mma")["over_cublas"], 2)


def test_speed_on_a_cpu() -> None:
    measured = _results("weights_speed")
    speed = {(one["work"], one["threads"]): one for one in measured["speed"]}
    for label, cells in _table("only figures of\none run compare"):
        for threads, cell in enumerate(cells, start=1):
            work = label.replace("`", "")
            _same(cell, speed[work, threads]["gigabytes_per_wall_second"], 2)
    folders = {one["work"]: one for one in measured["folders_two_cores"]}
    for label, cells in _table("A folder of 503 MB"):
        named = re.match(r"(encode to|verify) `(\w+)`", label)
        assert named is not None
        _same(cells[0], folders[f"{named[1].split()[0]} {named[2]}"], 2)


def test_bits_per_weight() -> None:
    bits = _results("weights_formats")["bits"]
    table = iter(_table("figures in\n`benchmarks/results/weights_formats.json`"))
    for model in ("all-MiniLM", "SmolLM2-135M, dithered", "SmolLM2-135M, from"):
        lines = {line["format"]: line for line in bits if line["model"].startswith(model)}
        for kind in ("linear", "embedding"):
            _, cells = next(table)
            for form, cell in zip(("w12", "w11s"), cells, strict=True):
                found = lines[form][kind]
                spread = {**found, "median": found["bits_per_weight"]}
                wanted = [spread[key] for key in ("median", "lowest", "highest")][: len(cell)]
                assert cell == pytest.approx(wanted, abs=0.00055)

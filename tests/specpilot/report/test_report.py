"""The report is a fold of the journal: complete at the end, readable at every moment before."""

import html.parser
import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import simulation

from specpilot.controller.journal import JournalLine, read_journal
from specpilot.controller.main import run_controller
from specpilot.core.errors import SpecPilotError
from specpilot.report.charts import Series, line_chart, stacked_bars, ticks
from specpilot.report.directions import spell_headroom
from specpilot.report.facts import build_report
from specpilot.report.figures import figures
from specpilot.report.html import render_html
from specpilot.report.lines import describe_all
from specpilot.report.writing import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: one sound change promoted, one lossy change refused."""
    folder = tmp_path_factory.mktemp("report") / "run"
    deployment = simulation.deployment_of()
    simulation.write_deployment(folder, deployment)
    edits = {
        "sound": [simulation.faster(1.2)],
        "lossy": [simulation.fault("lossy")],
    }
    run_controller(folder, simulation.parts_of(deployment, edits))
    return folder


@pytest.fixture(scope="module")
def lines(run: Path) -> tuple[JournalLine, ...]:
    """The run's journal."""
    return read_journal(run / "journal.jsonl").lines


@pytest.fixture(scope="module")
def report(lines: tuple[JournalLine, ...]) -> dict[str, Any]:
    """Its report."""
    return build_report(lines)


def test_it_holds_every_fact_that_readers_rely_on(report: dict[str, Any]) -> None:
    for name in ("ar", "stock", "best"):
        system = report["systems"][name]
        assert set(system["tokens_per_second"]["per_benchmark"]) == {"gsm8k", "mbpp"}
        assert system["tokens_per_second"]["overall"] > 0
        assert system["tau"]["overall"] > 0
        assert set(system["tau"]["per_benchmark"]) == {"gsm8k", "mbpp"}
    gain = report["gain_over_stock"]
    assert gain["low"] < gain["point"] < gain["high"]
    assert gain["point"] == pytest.approx(1.2, rel=0.02)
    assert report["confirmed"]
    assert report["speedup_over_ar"] == pytest.approx(
        report["systems"]["best"]["tokens_per_second"]["overall"]
        / report["systems"]["ar"]["tokens_per_second"]["overall"]
    )
    for moment in ("before", "after"):
        facts = report["ceiling"][moment]
        assert math.prod(facts["factors"].values()) == pytest.approx(facts["ceiling"])
    forcing = report["forcing"]
    for key in ("tokens", "mismatch_rate", "stock_mismatch_rate", "delta", "large_margin_events"):
        assert forcing[key] is not None
    assert (forcing["verdict"], forcing["unexplained"]) == ("accepted", 0)
    assert report["isolation"] == "namespaces"
    assert report["seconds"] > 0
    assert report["noise"] > 0
    assert [entry["entry"] for entry in report["memory"]] == ["sound"]
    for key in ("deployment", "stock_tree", "best_tree", "development_set", "sealed_set"):
        assert report["hashes"][key]


def test_every_direction_has_its_verdict_reason_and_numbers(report: dict[str, Any]) -> None:
    found = {item["id"]: item for item in report["directions"]}
    assert found["sound"]["verdict"] == "promoted"
    assert found["sound"]["attempts"][0]["gain"]["low"] > 1
    assert found["lossy"]["verdict"] == "not_promoted"
    assert found["lossy"]["reason"].startswith("forcing_")
    assert found["lossy"]["attempts"][0]["forcing_accepted"] is False
    assert found["lossy"]["attempts"][0]["record"].startswith("records/")


def test_numbers_are_the_journals_own_unrounded(
    report: dict[str, Any], lines: tuple[JournalLine, ...]
) -> None:
    final = next(line.data for line in lines if line.kind == "final_judged")
    assert report["gain_over_stock"]["point"] == final["gain"]["overall"]["point"]
    noise = next(line.data for line in lines if line.kind == "noise_measured")
    assert report["noise"] == noise["noise"]


def test_every_moment_of_a_run_has_a_report(lines: tuple[JournalLine, ...]) -> None:
    for count in range(len(lines) + 1):
        found = build_report(lines[:count])
        json.dumps(found, allow_nan=False)
        if count % 7 == 0:
            assert "<table>" in render_html(found)


def test_what_was_not_measured_is_missing(lines: tuple[JournalLine, ...]) -> None:
    started = build_report(lines[:2])
    assert started["noise"] is None
    assert started["gain_over_stock"]["point"] is None
    assert started["systems"]["best"]["tokens_per_second"]["overall"] is None
    assert started["forcing"] is None
    assert "not measured" in render_html(started)
    assert figures(started) == {}


def test_pauses_before_a_resumption_do_not_count(lines: tuple[JournalLine, ...]) -> None:
    again = next(line for line in lines if line.kind == "controller_started")
    late = again.model_copy(update={"time": "2100-01-01T00:00:00+00:00"})
    assert build_report([*lines, late])["seconds"] == build_report(lines)["seconds"]


class Page(html.parser.HTMLParser):
    """Collects what a page would load, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        names = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "object"):
            self.loads.append(tag)
        self.links += [str(names["href"])] if "href" in names else []
        if tag not in ("meta", "br", "!doctype"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""

    def handle_endtag(self, tag: str) -> None:
        """See `HTMLParser`."""
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: dict[str, Any], run: Path) -> None:
    text = render_html(report)
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert "url(" not in text
    assert "@import" not in text
    (run / "report").mkdir(exist_ok=True)
    for link in page.links:
        assert (run / "report" / link).resolve().is_file(), link


def test_the_page_shows_every_verdict_and_escapes_what_agents_say(report: dict[str, Any]) -> None:
    evil = json.loads(json.dumps(report))
    evil["directions"][0]["detail"] = "<script>alert(1)</script>"
    text = render_html(evil)
    assert "<script" not in text
    for item in report["directions"]:
        assert item["name"] in text
        assert item["verdict"] in text


def test_the_first_screen_is_the_answer(report: dict[str, Any]) -> None:
    text = render_html(report)
    first = text[text.index("<h1>") : text.index("Per benchmark")]
    for part in ("times as fast as stock, confirmed", "sound", "95%", "accepted", "cannot be"):
        assert part in first
    for name in ("best_tree", "journal"):
        assert report["hashes"][name][:12] in first


def test_systems_are_called_by_what_made_them(report: dict[str, Any]) -> None:
    assert "stock → stock + sound" in render_html(report)


def test_headroom_says_what_it_is(report: dict[str, Any]) -> None:
    for item in report["directions"]:
        assert (item["headroom"], item["headroom_by"]) == (None, None)
    planned = json.loads(json.dumps(report))
    planned["directions"][0] |= {"headroom": 0.25, "headroom_by": "planned"}
    assert '25.0%<br><span class="muted">planned' in render_html(planned)
    assert spell_headroom(0.25, "planned") == "+25.0% planned"
    assert spell_headroom(0.25, "microbenchmark") == "+25.0% by short run"


def test_writing_replaces_whole_files_and_needs_a_journal(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    shutil.copy(run / "journal.jsonl", copy / "journal.jsonl")
    for _ in range(2):
        report, folder = write_report(copy)
        assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == report
    assert {path.suffix for path in folder.iterdir()} == {".json", ".html", ".svg"}
    with pytest.raises(SpecPilotError, match="holds no run"):
        write_report(tmp_path / "nothing")


def test_figures_are_well_formed_and_show_every_point(report: dict[str, Any]) -> None:
    drawn = figures(report)
    assert set(drawn) == {"speedup_over_nodes", "tau_over_nodes", "step_breakdown"}
    for svg in drawn.values():
        assert ET.fromstring(svg).tag.endswith("svg")
    curve = report["ceiling"]["before"]["curve"]
    assert drawn["tau_over_nodes"].count("<circle") >= len(curve)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.3, 0.31), (5, 5), (-2, 3), (0, 1e6), (0, 0)])
def test_ticks_enclose_their_range_in_few_steps(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low <= high <= found[-1]
    assert 2 <= len(found) <= 8


def test_charts_escape_names() -> None:
    chart = line_chart("a < b", "x & y", "z", [Series("<s>", ((1, 1), (2, 2)))])
    bars = stacked_bars("t", "ms", {"<bar>": {"<part>": 1.0}}, ["<part>"])
    for svg in (chart, bars):
        ET.fromstring(svg)


def test_every_event_has_a_line_or_deliberately_none(lines: tuple[JournalLine, ...]) -> None:
    texts = describe_all(line.event() for line in lines)
    assert len(texts) < len(lines)
    assert any("sealed final: + promoted" in text for text in texts)
    assert any("lossy: - not_promoted (forcing_" in text for text in texts)
    assert all("\n" not in text for text in texts)

"""Every ending of a run is said in words that hold for it."""

from pathlib import Path
from typing import Any

import pytest
import simulation

from specpilot.controller.journal import JournalLine, read_journal
from specpilot.controller.main import run_controller
from specpilot.core.errors import ExitCode
from specpilot.report.facts import build_report
from specpilot.report.html import render_html
from specpilot.report.lines import describe_all
from specpilot.report.words import gain_words, headline

NULL = [("system.toml", "positions = 0", "positions = 8")]


def played(
    folder: Path, edits: simulation.Edits, **changes: Any
) -> tuple[ExitCode, tuple[JournalLine, ...]]:
    """A simulated run's exit code and journal."""
    deployment = simulation.deployment_of(**changes)
    simulation.write_deployment(folder, deployment)
    code = run_controller(folder, simulation.parts_of(deployment, edits))
    return code, read_journal(folder / "journal.jsonl").lines


def said(lines: tuple[JournalLine, ...]) -> tuple[str, str, dict[str, Any]]:
    """Headline and plain lines of a journal, and its report."""
    report = build_report(lines)
    found = headline(report)
    text = "\n".join(describe_all(line.event() for line in lines))
    return f"{found.title}. {found.sentence}", text, report


def test_a_confirmed_gain_is_the_answer(tmp_path: Path) -> None:
    code, lines = played(tmp_path, {"sound": [simulation.faster(1.2)]})
    title, text, report = said(lines)
    assert code is ExitCode.OK
    assert title.startswith("1.20 times as fast as stock, confirmed. sound: 1.2")
    assert "token forcing accepts" in title
    assert "phase 4: sealed final" in text
    assert gain_words(report) == "confirmed"


def test_nothing_promoted_speaks_of_no_final(tmp_path: Path) -> None:
    code, lines = played(tmp_path, {"null": NULL})
    title, text, report = said(lines)
    assert code is ExitCode.NOTHING_PROMOTED
    assert title.startswith("Nothing was promoted. None of 1 timed attempts was promoted; at A/A")
    assert "phase 4" not in text
    assert "nothing to confirm, so no sealed final is played" in text
    assert "nothing was promoted, so nothing to tune" in text
    assert gain_words(report) == "no sealed final was played"
    assert "not confirmed" not in render_html(report)
    assert report["speedup_over_ar"] == report["stock_speedup_over_ar"] > 1


def test_a_planner_without_ideas_is_said_as_that(tmp_path: Path) -> None:
    code, lines = played(tmp_path, {})
    title, text, _ = said(lines)
    assert code is ExitCode.NOTHING_PROMOTED
    assert "No direction was opened" in title
    assert "the planner sees no direction worth trying" in text


def test_a_run_in_which_everything_is_void_is_void(tmp_path: Path) -> None:
    code, lines = played(tmp_path, {"lost": [simulation.fault("lost_requests")]})
    title, _, report = said(lines)
    assert code is ExitCode.VOID
    assert report["outcome"] == "void"
    assert title.startswith("Void: nothing that was timed counts. All 1 timed attempts are void")


def test_one_attempt_that_counts_keeps_a_run_from_being_void(tmp_path: Path) -> None:
    edits = {"lost": [simulation.fault("lost_requests")], "null": NULL}
    code, lines = played(tmp_path, edits)
    assert code is ExitCode.NOTHING_PROMOTED
    assert "None of 2 timed attempts" in said(lines)[0]


def test_without_isolation_nothing_is_called_confirmed(tmp_path: Path) -> None:
    platform = {"devices": ["cpu"], "isolation": "none"}
    code, lines = played(tmp_path, {"sound": [simulation.faster(1.2)]}, platform=platform)
    title, _, report = said(lines)
    assert code is ExitCode.REFUSED
    assert title.startswith("Promoted in development, not confirmed. sound: without isolation")
    assert gain_words(report) == "no sealed final was played"


def test_every_moment_has_true_words(tmp_path: Path) -> None:
    _, lines = played(tmp_path, {"sound": [simulation.faster(1.2)]})
    kinds = [line.kind for line in lines]
    for count in range(2, len(lines)):
        title, _, report = said(lines[:count])
        if "final_judged" in kinds[:count]:
            assert "confirmed" in title
        elif "promoted" in kinds[:count]:
            assert title.startswith("Promoted in development, no sealed final yet")
        else:
            assert title.startswith("Not finished")
        assert "None" not in title
        assert (gain_words(report) == "confirmed") == ("final_judged" in kinds[:count])


@pytest.mark.parametrize(("spoiled", "words"), [("not_promoted", "does not confirm"),
                                                ("void", "the sealed final is void")])  # fmt: skip
def test_a_final_that_fails_is_said_with_its_numbers(
    tmp_path: Path, spoiled: str, words: str
) -> None:
    _, lines = played(tmp_path, {"sound": [simulation.faster(1.2)]})
    report = build_report(lines)
    report["rounds"][0]["final"] |= {"kind": spoiled, "detail": "gain 1.0 of old numbers"}
    report["confirmed"] = False
    found = headline(report)
    assert words in found.sentence
    assert "gain 1.0 of old numbers" in found.sentence
    assert gain_words(report) == "not confirmed"

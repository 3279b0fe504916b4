"""Writing a run's report: `report/report.json`, `report/index.html` and the figures."""

import json
from pathlib import Path
from typing import Any

from specpilot.controller.journal import read_journal
from specpilot.core.errors import SpecPilotError
from specpilot.core.whole_files import write_whole
from specpilot.report.facts import build_report
from specpilot.report.figures import figures
from specpilot.report.html import render_html


def write_report(run_folder: Path) -> tuple[dict[str, Any], Path]:
    """Fold the journal and write the report; returns its facts and its folder.

    Raises:
        SpecPilotError: no journal, a damaged one, or a folder that cannot be written.
    """
    report = read_report(run_folder)
    folder = run_folder / "report"
    texts = {
        "report.json": json.dumps(report, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
        "index.html": render_html(report),
        **{f"{name}.svg": svg for name, svg in figures(report).items()},
    }
    write_whole(folder, texts)
    return report, folder


def read_report(run_folder: Path) -> dict[str, Any]:
    """The facts of a run folder, finished or not.

    Raises:
        SpecPilotError: the folder holds no run, or its journal is damaged.
    """
    reading = read_journal(run_folder / "journal.jsonl")
    if not reading.lines:
        raise SpecPilotError(
            "holds no run", where=str(run_folder), fix="give the folder of a run that was started"
        )
    return build_report(reading.lines)

"""Writing a run's report: `report/report.json`, `report/index.html` and the figures."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from specpilot.controller.journal import read_journal
from specpilot.core.errors import SpecPilotError, of_system
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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write(folder / name, text)
    except OSError as error:
        raise of_system(error, where=str(folder)) from error
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


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader may look at any time."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    Path(name).chmod(0o644)
    Path(name).replace(path)

"""A run whose drafter is never right says so, however often its controller dies."""

from contextlib import suppress
from pathlib import Path

import pytest
from simulation import deployment_of, parts_of, run_killed, write_deployment

from specpilot.controller.journal import read_journal
from specpilot.controller.main import run_controller
from specpilot.core.errors import EngineFailure
from specpilot.loop.events import Noticed, StockCharacterised


def play(folder: Path, *, killed_at: int | None = None) -> tuple[list[str], int]:
    """The warnings of a run without directions, and the journal line that ends its phase 0."""
    deployment = deployment_of()
    write_deployment(folder, deployment)
    if killed_at is not None:
        assert run_killed(folder, parts_of(deployment, {}), at=killed_at, torn=False)
    with suppress(EngineFailure):
        # Where no step was ever taken, no ceiling follows.
        run_controller(folder, parts_of(deployment, {}))
    events = read_journal(folder / "journal.jsonl").events()
    notices = [event.message for event in events if isinstance(event, Noticed)]
    ends = [isinstance(event, StockCharacterised) for event in events].index(True)
    return [notice for notice in notices if notice.startswith("WARNING: the drafter")], ends + 1


def test_a_drafter_that_is_never_right_is_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot.engines.simulated._STOCK_TAU", 1.0)
    (warning,), ends = play(tmp_path / "whole")
    assert "stock emits 1.00 tokens a step" in warning
    assert play(tmp_path / "killed", killed_at=ends)[0] == [warning]


@pytest.mark.parametrize("tau", [2.4, 5000.0])
def test_a_drafter_that_is_right_or_was_never_asked_is_not(
    tau: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specpilot.engines.simulated._STOCK_TAU", tau)
    assert play(tmp_path)[0] == []

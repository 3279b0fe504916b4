"""The plan is a function of the state, and every event that it waits for ends an action."""

from pathlib import Path

from simulation import deployment_of, faster, parts_of, write_deployment

from specpilot.controller.journal import read_journal
from specpilot.controller.main import run_controller
from specpilot.loop.events import ControllerStarted, RunStarted
from specpilot.loop.plan import CommitStock, FinishRun, RunDirection, next_actions
from specpilot.loop.state import RunState, apply, fold


def finished_run(folder: Path) -> tuple:
    deployment = deployment_of()
    write_deployment(folder, deployment)
    edits = {"a": [faster(1.1)], "b": [("system.toml", "nodes = 0", "nodes = 9")]}
    run_controller(folder, parts_of(deployment, edits))
    return read_journal(folder / "journal.jsonl").events()


def test_planning_is_pure_and_ends(tmp_path: Path) -> None:
    state = RunState()
    for event in finished_run(tmp_path):
        state = apply(state, event)
        if state.limits is not None:
            assert next_actions(state) == next_actions(state)

    assert next_actions(state) == ()
    assert state == fold(finished_run_events(tmp_path))


def finished_run_events(folder: Path) -> tuple:
    return read_journal(folder / "journal.jsonl").events()


def test_a_fresh_run_begins_with_stock(tmp_path: Path) -> None:
    events = finished_run(tmp_path)
    start = [e for e in events if isinstance(e, RunStarted | ControllerStarted)]

    assert next_actions(fold(start)) == (CommitStock(),)


def test_directions_of_a_phase_run_at_once(tmp_path: Path) -> None:
    events = finished_run(tmp_path)
    planned = next(i for i, e in enumerate(events) if e.kind == "directions_planned")

    actions = next_actions(fold(events[: planned + 1]))

    assert actions == (RunDirection("a"), RunDirection("b"))


def test_every_prefix_has_something_to_do(tmp_path: Path) -> None:
    """No journal that a crash can leave behind is a dead end."""
    events = finished_run(tmp_path)
    for length in range(2, len(events)):
        actions = next_actions(fold(events[:length]))
        assert actions
    assert any(isinstance(action, FinishRun) for action in next_actions(fold(events[:-1])))

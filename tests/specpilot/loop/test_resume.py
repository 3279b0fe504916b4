"""Killing the controller at any journal line and resuming gives the state of the unkilled run."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import (
    CODE,
    Edits,
    deployment_of,
    essence,
    faster,
    fault,
    parts_of,
    run_killed,
    state_of,
    write_deployment,
)

from specpilot.controller.journal import read_journal
from specpilot.controller.main import run_controller
from specpilot.loop.state import RunState, fold

ONE: Edits = {"tree": [("system.toml", 'tree = "chain"', 'tree = "best_first"')]}
MANY: Edits = {
    "fast": [(CODE, "speed = 1.0", "speed = 1.1")],
    "null": [("system.toml", "positions = 0", "positions = 8")],
    "tree": [("system.toml", 'tree = "chain"', 'tree = "best_first"')],
    "lossy": [fault("lossy")],
}


def run_to_end(folder: Path, edits: Edits, kills: list[tuple[int, bool]]) -> RunState:
    deployment = deployment_of(budget={"max_rounds": 2})
    write_deployment(folder, deployment)
    for at, torn in kills:
        run_killed(folder, parts_of(deployment, edits), at=at, torn=torn)
    run_controller(folder, parts_of(deployment, edits))
    return state_of(folder)


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunState]:
    folder = tmp_path_factory.mktemp("unkilled")
    return {
        "one": run_to_end(folder / "one", ONE, []),
        "many": run_to_end(folder / "many", MANY, []),
    }


kills = st.lists(st.tuples(st.integers(1, 45), st.booleans()), min_size=1, max_size=4)
few = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@few
@given(kills=kills)
def test_one_direction_ends_in_the_same_state(
    kills: list[tuple[int, bool]],
    unkilled: dict[str, RunState],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("killed") / "run"

    state = run_to_end(folder, ONE, kills)

    assert essence(state) == essence(unkilled["one"])


@few
@given(kills=kills)
def test_parallel_directions_end_in_the_same_system_with_the_same_verdicts(
    kills: list[tuple[int, bool]],
    unkilled: dict[str, RunState],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("killed") / "run"

    state = run_to_end(folder, MANY, kills)

    assert facts(state) == facts(unkilled["many"])


def facts(state: RunState) -> object:
    """What must not depend on which direction happened to reach the device first."""
    assert state.best is not None
    assert state.finished is not None
    return {
        "best": state.best.tree_hash,
        "outcome": state.finished.outcome,
        "attempts": {name: len(item.attempts) for name, item in state.directions.items()},
        "promoted": {name for name, item in state.directions.items() if item.promoted},
        "closed": {name: item.closed and item.closed.reason for name, item in sorted(
            state.directions.items())},
    }  # fmt: skip


@pytest.mark.parametrize("at", range(2, 42, 6))
def test_a_torn_line_anywhere_is_survived(
    at: int, unkilled: dict[str, RunState], tmp_path: Path
) -> None:
    state = run_to_end(tmp_path, ONE, [(at, True)])

    assert essence(state) == essence(unkilled["one"])


def test_folding_in_two_parts_is_folding_at_once(tmp_path: Path) -> None:
    run_to_end(tmp_path, ONE, [(20, True)])
    events = read_journal(tmp_path / "journal.jsonl").events()

    again = fold(events)

    assert fold(list(events)) == again
    assert state_of(tmp_path) == again


def test_attempts_count_once_however_often_the_agent_restarts(tmp_path: Path) -> None:
    state = run_to_end(tmp_path, {"fast": [faster(1.1)]}, [(n, False) for n in (24, 3, 3, 3, 3)])

    direction = state.directions["fast"]
    assert direction.agent_starts > 1
    assert len(direction.attempts) == 1


def test_locks_of_a_killed_git_stop_no_resumption(
    unkilled: dict[str, RunState], tmp_path: Path
) -> None:
    deployment = deployment_of(budget={"max_rounds": 2})
    write_deployment(tmp_path, deployment)
    assert run_killed(tmp_path, parts_of(deployment, ONE), at=12, torn=False)
    branches = [path for path in (tmp_path / "repo" / "refs").rglob("*") if path.is_file()]
    for path in (*branches, tmp_path / "repo/refs/heads/best", tmp_path / "repo/packed-refs"):
        path.with_name(f"{path.name}.lock").touch()

    assert essence(run_to_end(tmp_path, ONE, [])) == essence(unkilled["one"])

"""What a watcher sees of the work: which system, which pass, and never a reason to fail."""

import json
from pathlib import Path

import pytest
import simulation

from specpilot.controller.main import run_controller
from specpilot.controller.progress import PROGRESS_FILE, Progress, Standing, read_standing
from specpilot.core.system import Checkout, System
from specpilot.engines.base import EngineAdapter

SYSTEM = System(commit="a" * 40, tree_hash="b" * 40, options={})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Standing]:
    """Every look, however fast the work is."""
    found: list[Standing] = []
    replace = Path.replace

    def kept(self: Path, target: Path) -> Path:
        if Path(target).name == PROGRESS_FILE.name:
            found.append(Standing.model_validate_json(self.read_text(encoding="utf-8")))
        return replace(self, target)

    monkeypatch.setattr("specpilot.controller.progress._INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(Path, "replace", kept)
    return found


def test_a_round_is_told_pass_by_pass(tmp_path: Path, looks: list[Standing]) -> None:
    deployment = simulation.deployment_of()
    simulation.write_deployment(tmp_path, deployment)
    run_controller(tmp_path, simulation.parts_of(deployment, {"a": [simulation.faster(1.2)]}))
    state = simulation.state_of(tmp_path)
    plays = [look for look in looks if look.passes == 2]
    assert {look.requests for look in plays} == {24}
    assert max(look.played for look in plays) == 2 * 2 * 24 - 1
    assert {look.arms for look in looks if look.passes == 1} >= {2, 3}
    assert {look.tree_hash for look in plays} == {
        state.stock.system.tree_hash,
        state.best.tree_hash,
    }
    assert any(look.autoregressive for look in looks)
    assert {look.doing for look in looks} >= {"starts", "plays", "scores outputs", "is profiled"}
    scoring = [look for look in looks if look.doing == "scores outputs"]
    assert all(look.passes == 0 for look in scoring)
    assert read_standing(tmp_path) == looks[-1]


def test_looks_are_rare(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p.json")
    checkout = Checkout(system=SYSTEM, path=tmp_path)
    progress.note("plays", checkout, 1)
    progress.note("scores outputs", checkout, 1)
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["doing"] == "plays"


def test_a_place_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    progress = Progress(tmp_path / PROGRESS_FILE)
    progress.note("plays", Checkout(system=SYSTEM, path=tmp_path), 1)
    assert read_standing(tmp_path) is None


def test_half_a_look_is_none(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / PROGRESS_FILE).write_text('{"at": "2026', encoding="utf-8")
    assert read_standing(tmp_path) is None


def test_the_watched_adapter_is_an_adapter() -> None:
    from specpilot.controller.progress import WatchedAdapter
    from specpilot.engines.simulated import SimulatedAdapter

    adapter: EngineAdapter = WatchedAdapter(SimulatedAdapter(), Progress())
    assert adapter.stock_tree() == SimulatedAdapter().stock_tree()

"""Entries from a confirmed round, and what the next run makes of them."""

from pathlib import Path

import pytest
import simulation

from specpilot.controller.main import run_controller
from specpilot.core.measurement import Isolation
from specpilot.engines.simulated import SimulatedAdapter
from specpilot.loop.parts import build_parts
from specpilot.loop.state import RunState
from specpilot.memory.admission import verify_entry
from specpilot.memory.registry import Registry
from specpilot.sandbox.probe import probe

pytestmark = pytest.mark.skipif(
    Isolation.NAMESPACES in probe().unavailable,
    reason="a round is confirmed, and remembered, only where servers can be kept apart",
)


def played(folder: Path) -> RunState:
    """A playbook run whose memory lies beside its folder."""
    deployment = simulation.deployment_of()
    simulation.write_deployment(folder, deployment)
    run_controller(folder, build_parts(deployment, folder))
    return simulation.state_of(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunState, RunState]:
    """Folder, first and second run of the same deployment."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, played(folder / "first"), played(folder / "second")


def test_promoted_mechanisms_become_entries_that_give_their_source(
    runs: tuple[Path, RunState, RunState],
) -> None:
    folder, first, _ = runs
    registry = Registry(folder / "memory")
    judged = first.rounds[0].memory
    promoted = [d for d in first.directions.values() if d.promoted is not None]
    assert len(judged) == len(promoted) >= 2
    assert all(event.admitted for event in judged.values())
    for event in judged.values():
        verify_entry(registry, registry.get(event.entry), SimulatedAdapter().stock_tree())


def test_an_entry_requires_what_its_promotion_was_built_on(
    runs: tuple[Path, RunState, RunState],
) -> None:
    folder, first, _ = runs
    registry = Registry(folder / "memory")
    entries = [registry.get(event.entry) for event in first.rounds[0].memory.values()]
    assert sorted(len(stored.entry.requires) for stored in entries) == [0, 1]
    last = next(stored for stored in entries if stored.entry.requires)
    assert last.entry.source_tree == first.best.tree_hash


def test_the_second_run_retimes_entries_and_discovers_nothing_new(
    runs: tuple[Path, RunState, RunState],
) -> None:
    _, first, second = runs
    reused = {
        d.plan.mechanism: d for d in second.directions.values() if d.plan.memory_entry is not None
    }
    assert {"best_first_tree", "prepacked_linear"} <= reused.keys()
    for item in reused.values():
        assert item.attempts, "a reused entry is timed again"
    checked = [
        "check" in [answer.operation for answer in item.answers.values()]
        for item in reused.values()
    ]
    assert any(checked), "an entry that applies as a patch is checked before it is timed"
    assert second.best.tree_hash == first.best.tree_hash
    details = [event.detail for event in second.rounds[0].memory.values()]
    assert details
    assert all("not a discovery" in detail for detail in details)

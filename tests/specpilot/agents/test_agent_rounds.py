"""The built-in agents on the real controller, with the simulated engine."""

from pathlib import Path
from typing import Any

import pytest
import simulation

from specpilot.controller.main import run_controller
from specpilot.core.errors import ExitCode
from specpilot.core.verdict import Reason, VerdictKind
from specpilot.loop.parts import build_parts
from specpilot.loop.state import RunState

ISOLATION = {"devices": ["cpu"], "isolation": "none"}
"""The agents' programs run plainly, so that these tests pass where there are no namespaces."""


def played(folder: Path, **changes: Any) -> tuple[ExitCode, RunState]:
    """A whole run with the parts that its deployment names."""
    run = folder / "run"
    deployment = simulation.deployment_of(platform=ISOLATION, **changes)
    simulation.write_deployment(run, deployment)
    code = run_controller(run, build_parts(deployment, run))
    return code, simulation.state_of(run)


@pytest.fixture(scope="module")
def playbook_run(tmp_path_factory: pytest.TempPathFactory) -> RunState:
    """One round of the playbook."""
    return played(tmp_path_factory.mktemp("playbook"))[1]


def test_the_playbook_promotes_what_pays(playbook_run: RunState) -> None:
    promoted = {
        item.plan.mechanism: item.promoted.gain.overall.point
        for item in playbook_run.directions.values()
        if item.promoted is not None
    }
    assert promoted["best_first_tree"] == pytest.approx(1.25, rel=0.02)
    assert promoted["prepacked_linear"] == pytest.approx(1.08, rel=0.02)


def test_the_playbook_closes_what_does_not_pay_on_a_bound(playbook_run: RunState) -> None:
    item = next(
        d for d in playbook_run.directions.values() if d.plan.mechanism == "fused_projections"
    )
    assert item.closed is not None
    assert item.closed.reason is Reason.CLOSED_ON_BOUND
    assert item.attempts == {}
    assert item.closed.headroom == pytest.approx(0.008, abs=0.01)
    assert "below 3%" in item.closed.detail


def test_the_playbook_asks_before_it_edits(playbook_run: RunState) -> None:
    for item in playbook_run.directions.values():
        operations = [answer.operation for answer in item.answers.values()]
        assert operations[0] == "headroom"
        assert "check" not in operations, "shipped options go from their bound to a timed run"


SCRIPT = """
[[direction]]
id = "lossy"
name = "Wrong tokens after a while"
[[direction.step]]
replace = [
  { path = "specengine/simulated.toml", old = 'fault = "none"', new = 'fault = "lossy"' },
]
operations = ["time", "submit"]

[[direction]]
id = "sound"
name = "Faster code"
expected_headroom = 0.2
[[direction.step]]
replace = [{ path = "specengine/simulated.toml", old = "speed = 1.0", new = "speed = 1.2" }]
operations = ["check", "submit"]

[[direction]]
id = "forbidden"
name = "Writes where it may not"
[[direction.step]]
write = [{ path = "journal.jsonl", text = "{}" }]

[[direction]]
id = "closed"
name = "Gives up"
[[direction.step]]
options = { nodes = 8 }
operations = ["close"]
close_reason = "byte arithmetic bounds it at 1%"
"""


def test_a_scripted_lossy_change_is_refused_and_a_sound_one_is_promoted(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT, encoding="utf-8")
    _, state = played(tmp_path, agent={"kind": "scripted", "script": str(script)})

    assert set(state.directions) >= {"lossy", "sound", "forbidden", "closed"}
    lossy, sound = state.directions["lossy"], state.directions["sound"]
    verdict = lossy.last_verdict()
    assert verdict is not None
    assert verdict.kind is VerdictKind.NOT_PROMOTED
    assert verdict.reason in (Reason.FORCING_RATE, Reason.FORCING_EVENTS)
    assert lossy.promoted is None
    assert sound.promoted is not None
    assert sound.promoted.gain.overall.point == pytest.approx(1.2, rel=0.02)
    assert state.directions["forbidden"].closed.reason is Reason.FORBIDDEN_PATH
    assert state.directions["closed"].closed.reason is Reason.CLOSED_ON_BOUND

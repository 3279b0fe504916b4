"""A whole round in which a scripted agent edits the code of the real engine.

The drafter knows nothing, so that drafting only costs time: leaving it out is a sound gain, and
emitting what it drafts is a lossy one that looks far faster.
"""

import json

import pytest
import simulation
import torch
from useless_drafter import VOCABULARY, write_drafter, write_target

from specpilot.controller.main import run_controller
from specpilot.core.deployment import parse_deployment
from specpilot.core.errors import ExitCode
from specpilot.core.measurement import Isolation
from specpilot.core.verdict import Reason, VerdictKind
from specpilot.loop.events import AttemptJudged
from specpilot.loop.parts import build_parts
from specpilot.loop.state import RunState
from specpilot.sandbox.probe import probe

ISOLATION = Isolation.NONE if Isolation.NAMESPACES in probe().unavailable else Isolation.NAMESPACES
SCRIPT = """
[[direction]]
id = "useless-drafter"
name = "A drafter that never helps"

[[direction.step]]
message = "Accept every drafted token"
replace = [{ path = "specengine/verify/acceptance.py", old = '''
        if parents[node] == rows[-1] and drafted[node] == tokens[-1]:
''', new = '''
        if parents[node] == rows[-1]:
            tokens[-1] = drafted[node]
''' }]

[[direction.step]]
message = "Verify the anchor alone"
replace = [
  { path = "specengine/verify/acceptance.py", old = '''
        if parents[node] == rows[-1]:
            tokens[-1] = drafted[node]
''', new = '''
        if parents[node] == rows[-1] and drafted[node] == tokens[-1]:
''' },
  { path = "specengine/decoding/proposal.py", old = '''
        if depth == 0:
            return root_only(anchor)
        if self._tree''', new = '''
        return root_only(anchor)
        if self._tree''' },
]
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> RunState:
    """The state after one whole round."""
    folder = tmp_path_factory.mktemp("edits")
    write_target(folder / "target")
    # So many that leaving them out shows on a busy machine too.
    write_drafter(folder / "drafter", layers=12)
    words = torch.randint(3, VOCABULARY, (12, 20), generator=torch.Generator().manual_seed(2))
    lines = [json.dumps({"prompt": " ".join(f"t{i}" for i in row)}) for row in words.tolist()]
    (folder / "one.jsonl").write_text("\n".join(lines[:6]), encoding="utf-8")
    (folder / "two.jsonl").write_text("\n".join(lines[6:]), encoding="utf-8")
    (folder / "script.toml").write_text(SCRIPT, encoding="utf-8")
    deployment = parse_deployment(
        {
            "name": "edits",
            "target": {"model": str(folder / "target"), "dtype": "float32"},
            "drafter": {"kind": "dflash2", "model": str(folder / "drafter")},
            "engine": {"kind": "embedded", "threads": 1},
            "platform": {"devices": ["cpu"], "isolation": ISOLATION.value},
            "workload": {
                "benchmarks": {name: str(folder / f"{name}.jsonl") for name in ("one", "two")},
                "development": 3,
                "sealed": 3,
                "passes": 1,
                "max_new_tokens": 32,
                "sealed_max_new_tokens": 32,
            },
            "agent": {"kind": "scripted", "script": str(folder / "script.toml")},
            "budget": {"max_rounds": 1},
        },
        where="test",
    )
    simulation.write_deployment(folder / "run", deployment)
    code = run_controller(folder / "run", build_parts(deployment, folder / "run"))
    assert code is not ExitCode.ERROR
    return simulation.state_of(folder / "run")


def attempts(state: RunState) -> list[AttemptJudged]:
    found = state.directions["useless-drafter"].attempts.values()
    return [attempt.judged for attempt in found if attempt.judged is not None]


def test_a_lossy_edit_that_looks_faster_is_refused_by_token_forcing(state: RunState) -> None:
    verdict = attempts(state)[0].verdict

    assert verdict.gain is not None and verdict.threshold is not None, verdict
    assert verdict.gain.overall.low > 1 + verdict.threshold, "only forcing stands in its way"
    assert verdict.kind is VerdictKind.NOT_PROMOTED
    assert verdict.reason in (Reason.FORCING_RATE, Reason.FORCING_EVENTS)


def test_a_sound_edit_is_promoted(state: RunState) -> None:
    judged = attempts(state)[1]
    promoted = state.directions["useless-drafter"].promoted

    assert promoted is not None and promoted.system == judged.system, judged.verdict
    assert judged.forcing is not None and judged.forcing.mismatches == 0

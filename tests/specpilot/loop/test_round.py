"""Whole rounds on the simulated engine: phases, integration, budget, several rounds."""

import dataclasses
from operator import attrgetter
from pathlib import Path

import pytest
from simulation import (
    CODE,
    Edits,
    deployment_of,
    faster,
    parts_of,
    run_killed,
    state_of,
    write_deployment,
)

from specpilot.agents.events import CostEvent, ResultEvent
from specpilot.controller.journal import read_journal
from specpilot.controller.main import run_controller
from specpilot.core.deployment import Deployment
from specpilot.core.errors import DamagedRun, EngineFailure, ExitCode, Refused
from specpilot.core.verdict import Reason
from specpilot.costmodel.replay_files import read_recordings
from specpilot.engines.simulated import SimulatedAdapter
from specpilot.loop.events import Noticed
from specpilot.loop.facts import DirectionPlan, Factor, Outcome
from specpilot.loop.state import RunState

OPTION = {
    "tree": ("system.toml", 'tree = "chain"', 'tree = "best_first"'),
    "linear": ("system.toml", 'linear = "plain"', 'linear = "prepacked"'),
    "fused": ("system.toml", "fused_projections = false", "fused_projections = true"),
    "positions": ("system.toml", "positions = 0", "positions = 8"),
}


def play(folder: Path, edits: Edits, **changes: object) -> tuple[ExitCode, RunState]:
    deployment = deployment_of(**changes)
    write_deployment(folder, deployment)
    code = run_controller(folder, parts_of(deployment, edits))
    return code, state_of(folder)


def test_independent_mechanisms_are_promoted_one_on_the_other(tmp_path: Path) -> None:
    edits = {name: [OPTION[name]] for name in ("tree", "linear")}

    code, state = play(tmp_path, edits)

    assert code is ExitCode.OK
    assert state.best.options | {"tree": "best_first", "linear": "prepacked"} == state.best.options
    final = state.rounds[0].final
    assert final.gain.overall.low <= 1.25 * 1.08 <= final.gain.overall.high
    assert final.speedup_over_ar == pytest.approx(2 * 1.25 * 1.08, rel=0.01)
    assert final.stock_speedup_over_ar == pytest.approx(2.0, rel=0.01)
    assert {item.admitted for item in state.rounds[0].memory.values()} == {True}
    assert state.rounds[0].finished.ceiling_after is not None
    recorded = read_recordings(tmp_path / "recordings" / "ceiling-1.npz")
    benchmarks = {
        item.partition("/")[0] for item in map(attrgetter("request_id"), recorded.recordings)
    }
    assert set(recorded.groups) == benchmarks <= set(deployment_of().workload.benchmarks)


def test_pieces_too_small_alone_are_promoted_as_a_stack(tmp_path: Path) -> None:
    adapter = SimulatedAdapter()
    stock = dict(adapter.stock_tree())
    stock[CODE] += b'"positions=8" = 1.009\n'
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    edits = {name: [OPTION[name]] for name in ("fused", "positions")}

    run_controller(tmp_path, parts_of(deployment, edits, adapter=SimulatedAdapter(stock=stock)))

    state = state_of(tmp_path)
    assert not any(state.directions[name].promoted for name in edits)
    stack = state.directions["r1-integration"]
    assert stack.promoted is not None
    assert stack.promoted.gain.overall.point == pytest.approx(1.008 * 1.009, abs=0.004)
    assert len(stack.attempts) == 2


def test_nothing_promoted_has_its_own_exit_code(tmp_path: Path) -> None:
    code, state = play(tmp_path, {"null": [OPTION["positions"]]})

    assert code is ExitCode.NOTHING_PROMOTED
    assert state.best == state.stock.system
    assert state.rounds[0].final is None


def test_a_broken_stock_stops_before_anything_is_compared(tmp_path: Path) -> None:
    stock = {**SimulatedAdapter().stock_tree(), CODE: b'fault = "lost_requests"\n'}
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)

    with pytest.raises(EngineFailure, match="stock in phase 0: 26 of 48 requests failed"):
        run_controller(tmp_path, parts_of(deployment, {}, adapter=SimulatedAdapter(stock=stock)))

    assert state_of(tmp_path).noise is None


@pytest.mark.parametrize(("speed", "warnings"), [("0.42", 1), ("1.0", 0)])
def test_a_drafter_that_is_never_right_is_named(speed: str, warnings: int, tmp_path: Path) -> None:
    source = SimulatedAdapter().stock_tree()
    stock = {**source, CODE: source[CODE].replace(b"speed = 1.0", f"speed = {speed}".encode())}
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)

    run_controller(tmp_path, parts_of(deployment, {}, adapter=SimulatedAdapter(stock=stock)))

    notices = [
        event.message
        for event in read_journal(tmp_path / "journal.jsonl").events()
        if isinstance(event, Noticed)
    ]
    assert [message.startswith("WARNING: the drafter") for message in notices] == [True] * warnings


def test_two_devices_are_swapped(tmp_path: Path) -> None:
    _, state = play(
        tmp_path, {"tree": [OPTION["tree"]]}, platform={"devices": ["cuda:0", "cuda:1"]}
    )

    attempt = next(iter(state.directions["tree"].attempts.values()))
    record = (tmp_path / attempt.judged.record.path).read_text()
    assert '"order": "swap"' in record
    assert state.directions["tree"].promoted is not None
    assert state.cuda_seconds > 0
    assert not state.leases


def test_batch_sizes_are_reported_apart(tmp_path: Path) -> None:
    _, state = play(tmp_path, {"tree": [OPTION["tree"]]}, regime={"concurrency": [1, 4]})

    names = set(state.rounds[0].final.gain.per_benchmark)
    assert names == {"gsm8k@1", "gsm8k@4", "mbpp@1", "mbpp@4"}


def test_gpu_hours_stop_new_work_and_raising_them_goes_on(tmp_path: Path) -> None:
    platform = {"devices": ["cuda:0"]}
    edits = {"tree": [OPTION["tree"]]}
    code, state = play(tmp_path, edits, platform=platform, budget={"max_gpu_hours": 1e-9})

    assert code is ExitCode.BUDGET_SPENT
    assert state.budget.limit == "max_gpu_hours"
    assert not state.directions

    code, state = play(tmp_path, edits, platform=platform, budget={"max_gpu_hours": 1.0})

    assert code is ExitCode.OK
    assert state.directions["tree"].promoted is not None


class PayingAgent:
    name = "paying"

    def __init__(self, usd: float | None) -> None:
        self._usd = usd

    async def start(self, brief, workspace, limits):
        if self._usd is not None:
            yield CostEvent(total_usd=self._usd)
        yield ResultEvent(summary="nothing found")

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize(("stated", "counted"), [(1.5, 1.5), (None, 2.0)])
def test_money_that_is_not_stated_counts_at_the_limit(
    stated: float | None, counted: float, tmp_path: Path
) -> None:
    deployment = deployment_of(
        agent={"kind": "command", "preset": "claude", "max_directions": 2},
        budget={"max_usd": 4.0},
    )
    write_deployment(tmp_path, deployment)
    parts = parts_of(deployment, {"one": []})
    parts = dataclasses.replace(parts, make_agent=lambda *_: PayingAgent(stated))

    run_controller(tmp_path, parts)

    state = state_of(tmp_path)
    assert state.spent_usd() == counted
    assert state.directions["one"].closed.reason is Reason.AGENT_ENDED


def test_rounds_start_from_the_best_before(tmp_path: Path) -> None:
    deployment = deployment_of(budget={"max_rounds": 2})
    write_deployment(tmp_path, deployment)
    edits = {"tree": [OPTION["tree"]], "linear": [OPTION["linear"]]}
    names = list(edits)

    def plan(facts, memory, max_directions):
        if facts.phase != 1:
            return ()
        name = names[facts.round - 1]
        return (DirectionPlan(id=name, name=name, mechanism=name, factor=Factor.TAU, idea="x"),)

    run_controller(tmp_path, dataclasses.replace(parts_of(deployment, edits), plan_directions=plan))

    state = state_of(tmp_path)
    first, second = state.rounds
    assert second.start == first.finished.best != state.stock.system
    assert second.ceiling.ceiling == first.finished.ceiling_after
    assert state.finished.outcome is Outcome.PROMOTED
    assert state.finished.promoted == 2


def test_a_resumed_run_may_change_its_budget_and_nothing_else(tmp_path: Path) -> None:
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    run_killed(tmp_path, parts_of(deployment, {}), at=8, torn=False)
    other = deployment_of(regime={"concurrency": [2]})
    write_deployment(tmp_path, other)

    with pytest.raises(Refused, match=r"changed since the run started .regime."):
        run_controller(tmp_path, parts_of(other, {}))


def test_leases_of_a_killed_controller_are_settled(tmp_path: Path) -> None:
    deployment = deployment_of(platform={"devices": ["cuda:0"]})
    write_deployment(tmp_path, deployment)
    edits = {"fast": [faster(1.1)]}
    for at in range(6, 40):
        folder = tmp_path / str(at)
        write_deployment(folder, deployment)
        run_killed(folder, parts_of(deployment, edits), at=at, torn=False)
        if state_of(folder).leases:
            break
    assert state_of(folder).leases

    run_controller(folder, parts_of(deployment, edits))

    events = read_journal(folder / "journal.jsonl").events()
    taken = [event for event in events if event.kind == "lease_taken"]
    assert len(taken) == len([event for event in events if event.kind == "lease_released"])


def test_changed_sealed_requests_are_noticed(tmp_path: Path) -> None:
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    run_killed(tmp_path, parts_of(deployment, {"tree": [OPTION["tree"]]}), at=30, torn=False)
    split = tmp_path / "sealed" / "split.json"
    split.write_text(split.read_text().replace('"max_new_tokens": 128', '"max_new_tokens": 8'))

    with pytest.raises(DamagedRun, match="sealed requests are not those"):
        run_controller(tmp_path, parts_of(deployment, {"tree": [OPTION["tree"]]}))


def test_the_journal_tells_no_prompt(tmp_path: Path) -> None:
    deployment: Deployment = deployment_of()
    play(tmp_path, {"tree": [OPTION["tree"]]})

    assert "prompt_token_ids" not in (tmp_path / "journal.jsonl").read_text()
    assert deployment.name in (tmp_path / "journal.jsonl").read_text()

"""`plan` looks at what a run would need, and says what its speed rests on."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import simulation

from specpilot.cli.earlier_runs import Speed, known_speed
from specpilot.cli.main import run
from specpilot.cli.models import require_models
from specpilot.cli.plan import SPREADS, estimate, smallest_gain
from specpilot.controller.main import run_controller
from specpilot.core.deployment import Deployment
from specpilot.core.errors import SpecPilotError

TARGET = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 4}
DRAFTER = {"vocab_size": 100, "hidden_size": 16, "num_target_layers": 4}


def model(folder: Path, config: dict[str, Any] | None, *, weights: bool = True) -> Path:
    """A model's folder with no more than what is looked at."""
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if weights:
        (folder / "model.safetensors").touch()
    return folder


def deployed(target: Path, drafter: Path, kind: str = "dflash2") -> Deployment:
    """A deployment of two folders on the embedded engine."""
    return simulation.deployment_of(
        engine={"kind": "embedded"},
        target={"model": str(target)},
        drafter={"kind": kind, "model": str(drafter)},
    )


def test_models_that_belong_together_are_found(tmp_path: Path) -> None:
    nested = {"model_type": "x", "text_config": TARGET}
    found = require_models(deployed(model(tmp_path / "t", nested), model(tmp_path / "d", DRAFTER)))
    assert [item.role for item in found] == ["target", "drafter"]
    assert require_models(simulation.deployment_of()) == ()


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"vocab_size": 99}, "auto", "vocab_size is 99, the target's is 100"),
        ({"num_target_layers": 5}, "dflash", "num_target_layers is 5, the target's is 4"),
        ({"hidden_size": 8}, "dspark", "hidden_size is 8, the target's is 16"),
        ({"target_hidden_size": 8}, "eagle3", "target_hidden_size is 8, the target's is 16"),
    ],
)
def test_a_drafter_of_another_target_is_named(
    tmp_path: Path, change: dict[str, int], kind: str, text: str
) -> None:
    target = model(tmp_path / "t", TARGET)
    with pytest.raises(SpecPilotError, match=text):
        require_models(deployed(target, model(tmp_path / "d", DRAFTER | change), kind))


def test_eagle3_may_be_narrower_than_its_target(tmp_path: Path) -> None:
    drafter = model(tmp_path / "d", DRAFTER | {"hidden_size": 8})
    assert require_models(deployed(model(tmp_path / "t", TARGET), drafter, "eagle3"))


@pytest.mark.parametrize(
    ("config", "weights", "text"),
    [(None, True, "holds no config.json"), (TARGET, False, "holds no weights")],
)
def test_plan_names_what_a_folder_lacks(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    config: dict[str, Any] | None,
    weights: bool,
    text: str,
) -> None:
    target = model(work / "t", config, weights=weights)
    chosen = deployed(target, model(work / "d", DRAFTER))
    simulation.write_deployment(work / "made", chosen)
    for command in ("plan", "optimize"):
        assert run([command, "made/deployment.toml"]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert text in error
        assert str(target) in error
    assert not (work / "runs").exists()


def test_plan_names_a_workload_that_is_missing(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = deployed(model(work / "t", TARGET), model(work / "d", DRAFTER))
    simulation.write_deployment(work / "made", chosen)
    assert run(["plan", "made/deployment.toml"]) == 1
    assert "tokenizer" in capsys.readouterr().err


def test_the_speed_is_an_assumption_until_a_run_has_measured_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = simulation.deployment_of()
    simulation.write_deployment(work / "made", deployment)
    assert run(["plan", "made/deployment.toml"]) == 0
    said = capsys.readouterr().out
    assert "at 40 tokens/s (an assumption: no run of these models on these devices" in said
    folder = work / "runs" / "earlier"
    simulation.write_deployment(folder, deployment)
    run_controller(folder, simulation.parts_of(deployment, {}))
    (work / "runs" / "damaged").mkdir()
    (work / "runs" / "damaged" / "journal.jsonl").write_bytes(b"no json\n")
    stock = simulation.state_of(folder).stock_facts
    assert stock is not None
    speed = known_speed(deployment)
    assert speed.tokens_per_second == pytest.approx(stock.stock.overall_tokens_per_second)
    assert run(["plan", "made/deployment.toml"]) == 0
    said = capsys.readouterr().out
    assert "(measured in runs/earlier)" in said
    assert "no gain under" in said
    other = simulation.deployment_of(target={"model": "another"})
    assert known_speed(other).noise is None
    assert known_speed(deployment, 7.0).source == "given"
    drafter = deployment.drafter
    for kind, known in (("auto", True), ("eagle3", False)):
        named = drafter.model_copy(update={"kind": kind})
        same_folder = deployment.model_copy(update={"drafter": named})
        assert known_speed(same_folder).source.startswith("measured") is known


def test_each_batch_size_is_played_and_counted(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = simulation.deployment_of()
    several = simulation.deployment_of(regime={"concurrency": [2, 8]})
    speed = Speed(40.0, "given")
    alone, both = estimate(one, speed), estimate(several, speed)
    assert both["hours"] == pytest.approx(2 * alone["hours"])
    assert both["pairs"] == 2 * alone["pairs"] == 48
    assert both["power"][1]["smallest_gain"] == smallest_gain(SPREADS[1], 48, 4)
    simulation.write_deployment(work / "made", several)
    assert run(["plan", "made/deployment.toml"]) == 0
    assert "requests in flight: 2, 8, taking turns" in capsys.readouterr().out
    simulation.write_deployment(work / "one", one)
    assert run(["plan", "one/deployment.toml"]) == 0
    assert "in flight" not in capsys.readouterr().out


@pytest.mark.parametrize("earlier", [[1], [4], [1, 4]])
def test_a_speed_under_another_load_is_taken_by_its_shares(
    work: Path, monkeypatch: pytest.MonkeyPatch, earlier: list[int]
) -> None:
    """Of requests that take turns, each has a part of the rate of one alone."""
    deployment = simulation.deployment_of(regime={"concurrency": earlier})
    folder = work / "runs" / "earlier"
    simulation.write_deployment(folder, deployment)
    run_controller(folder, simulation.parts_of(deployment, {}))
    state = simulation.state_of(folder)
    assert state.stock_facts is not None and state.noise is not None
    stock = state.stock_facts.stock
    sizes = {f"{name}@{size}": size for name in ("gsm8k", "mbpp") for size in earlier}
    names = sizes if len(earlier) > 1 else dict.fromkeys(("gsm8k", "mbpp"), earlier[0])
    assert stock.tokens_per_second.keys() == names.keys()
    shared = {name: 60.0 / size for name, size in names.items()}
    turns = stock.model_copy(update={"tokens_per_second": shared})
    facts = state.stock_facts.model_copy(update={"stock": turns})
    found = dataclasses.replace(state, stock_facts=facts)
    monkeypatch.setattr("specpilot.cli.earlier_runs.fold", lambda _: found)

    alone = known_speed(simulation.deployment_of())

    assert alone.tokens_per_second == pytest.approx(60.0)
    assert alone.noise == (state.noise.noise if earlier == [1] else None)
    assert known_speed(deployment).noise == state.noise.noise

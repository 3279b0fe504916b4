"""Two commands and one run folder: one works on it, the other is told so and changes nothing."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
import simulation

from specpilot.cli import demo, force, optimize, resume
from specpilot.cli.claim import claimed
from specpilot.cli.load import Load
from specpilot.cli.main import run
from specpilot.cli.runs import write_deployment
from specpilot.core.deployment import Deployment
from specpilot.core.errors import Refused, SpecPilotError

PLAIN = {"devices": ["cpu"], "isolation": "none"}
ONE = {"kind": "playbook", "max_directions": 1}
COMMAND = [sys.executable, "-m", "specpilot"]


@pytest.fixture
def begun(work: Path) -> Path:
    """A run folder that a controller worked on until its fourth journal line."""
    folder = work / "begun"
    deployment = simulation.deployment_of(platform=PLAIN)
    simulation.write_deployment(folder, deployment)
    assert simulation.run_killed(folder, simulation.parts_of(deployment, {}), at=4, torn=False)
    return folder


def test_of_commands_that_start_at_once_one_runs_and_its_deployment_stays(work: Path) -> None:
    for passes in (1, 2):
        table = {"benchmarks": ["gsm8k"], "development": 8, "sealed": 8, "passes": passes}
        deployment = simulation.deployment_of(platform=PLAIN, agent=ONE, workload=table)
        write_deployment(deployment, work / f"{passes}.toml")
    both = [
        subprocess.Popen(
            [*COMMAND, "optimize", f"{passes}.toml", "--run", "r"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for passes in (1, 2)
    ]  # fmt: skip
    ended = [(process.communicate()[1], process.returncode) for process in both]

    losers = [said for said, _ in ended if said]
    assert len(losers) == 1, ended
    assert losers[0].count("\n") == 1
    assert "another --run" in losers[0]
    assert "run_finished" in (work / "r" / "journal.jsonl").read_text().splitlines()[-1]
    assert run(["resume", "r"]) in (2, 5), "the deployment on the disk is the winner's"


@pytest.mark.parametrize("command", ["resume", "force", "demo", "optimize"])
def test_who_comes_second_is_told_and_changes_nothing(
    command: str, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = begun.with_name("mine.toml")
    write_deployment(simulation.deployment_of(platform=PLAIN), file)
    (begun / "journal.jsonl").rename(begun / "kept")
    if command in ("resume", "force"):
        (begun / "kept").rename(begun / "journal.jsonl")
    before = {path: path.stat().st_mtime_ns for path in begun.rglob("*")}
    monkeypatch.setattr(demo, "prepare_target", lambda target: target)
    monkeypatch.setattr(demo, "find_drafter", lambda drafter: begun)
    monkeypatch.setattr(demo, "require_models", lambda deployment: ())
    monkeypatch.setattr(demo, "note_load", lambda *_: None)
    arguments = {
        "optimize": ["optimize", str(file), "--run", str(begun)],
        "demo": ["demo", "--run", str(begun), "--isolation", "none"],
    }.get(command, [command, str(begun)])

    with claimed(begun):
        assert run(arguments) == 5

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "another command" in said
    assert {path: path.stat().st_mtime_ns for path in begun.rglob("*")} == before


def test_a_claim_ends_with_its_holder_and_follows_the_folder(work: Path) -> None:
    folder = work / "r"
    holder = multiprocessing.get_context("fork").Process(target=_hold_and_die, args=(folder,))
    holder.start()
    holder.join()
    with claimed(folder):
        folder.rename(work / "moved")
        with pytest.raises(Refused), claimed(work / "moved"):
            pass
        with claimed(folder, make=True):
            assert folder.is_dir()
    (work / "file").touch()
    for make in (False, True):
        with pytest.raises(SpecPilotError, match="cannot be"), claimed(work / "file", make=make):
            pass


def _hold_and_die(folder: Path) -> None:
    with claimed(folder, make=True):
        os._exit(0)


@pytest.mark.parametrize("command", ["resume", "force"])
def test_work_on_the_cores_is_noted_before_going_on(
    command: str, begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def forced(*_: object) -> None:
        raise SpecPilotError("done", where="test", fix="none")

    def embedded(_: Path) -> Deployment:
        return simulation.deployment_of(engine={"kind": "embedded"})

    monkeypatch.setattr("specpilot.cli.load.measure_load", lambda: Load(97.0, 1, ("ld 97%",)))
    monkeypatch.setattr(resume, "run_and_report", lambda *_, **__: 0)
    monkeypatch.setattr(force, "force_run", forced)
    for module in (resume, force, optimize):
        monkeypatch.setattr(module, "load_deployment", embedded)
    run([command, str(begun)])
    assert "note: the busiest core is 97% used" in capsys.readouterr().err

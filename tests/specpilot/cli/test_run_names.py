"""Whose a run folder is: a start that failed leaves its name free, a run that began keeps it."""

import fcntl
from pathlib import Path

import pytest
import simulation

from specpilot.cli.demo import QUICK, demo_deployment, set_earlier_demo_aside
from specpilot.cli.main import run
from specpilot.cli.runs import create_run, has_begun, is_being_written
from specpilot.core.deployment import Deployment
from specpilot.core.errors import ExitCode, Refused
from specpilot.core.measurement import Isolation
from specpilot.sandbox.probe import probe

PLAIN = {"devices": ["cpu"], "isolation": "none"}
LINE = b'{"seq": 0}\n'


@pytest.fixture
def deployment() -> Deployment:
    """A small simulated deployment without isolation, one of whose two directions pays."""
    two = {"kind": "playbook", "max_directions": 2}
    return simulation.deployment_of(platform=PLAIN, agent=two)


def test_a_mistyped_model_does_not_take_the_name(
    work: Path, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation.write_deployment(work / "good", deployment)
    file = work / "good" / "deployment.toml"
    bad = work / "bad.toml"
    text = file.read_text(encoding="utf-8").replace('kind = "simulated"', 'kind = "embedded"')
    missing = str(work / "absent")
    bad.write_text(text.replace('model = "simulated"', f'model = "{missing}"'), encoding="utf-8")
    assert run(["optimize", str(bad), "--run", "r"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert missing in error
    for command in ("status", "report", "stop", "ceiling", "force"):
        assert run([command, "r"]) == 1
        assert "holds no run" in capsys.readouterr().err
    assert run(["optimize", str(file), "--run", "r"]) in (ExitCode.VOID, ExitCode.REFUSED)
    assert has_begun(Path("r"))


def test_neither_the_name_nor_files_beside_it_are_taken_for_something_else(
    work: Path, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation.write_deployment(work / "given", deployment)
    for name in ("numpy.py", "gzip.py"):
        (work / name).write_text("raise SystemExit('a file of the working directory ran')")
    asked = ["optimize", "given/deployment.toml", "--run", "-odd name"]
    assert run(asked) in (ExitCode.VOID, ExitCode.REFUSED)
    assert capsys.readouterr().err == ""
    assert has_begun(Path("-odd name"))


@pytest.mark.parametrize("level", ["namespaces", "strict"])
def test_isolation_that_is_missing_refuses_before_anything_is_written(
    level: str,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    confined = simulation.deployment_of(platform={"devices": ["cpu"], "isolation": level})
    simulation.write_deployment(work / "asked", confined)
    monkeypatch.setattr("specpilot.cli.isolation.probe", lambda: probe(program="no-such-bwrap"))
    for command in (["optimize", "asked/deployment.toml", "--run", "r"], ["resume", "begun"]):
        if command[0] == "resume":
            create_run(confined, work / "begun")
            (work / "begun" / "journal.jsonl").write_bytes(LINE)
        assert run(command) == ExitCode.REFUSED
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"isolation {level}: not available here" in error
    assert not (work / "r").exists()
    assert (work / "begun" / "journal.jsonl").read_bytes() == LINE


@pytest.mark.parametrize("content", [b"", LINE[:5]])
def test_a_journal_without_a_whole_line_is_no_run(
    content: bytes, work: Path, deployment: Deployment
) -> None:
    (work / "journal.jsonl").write_bytes(content)
    assert not has_begun(work)
    create_run(deployment, work)
    (work / "journal.jsonl").write_bytes(LINE + content)
    assert has_begun(work)
    with pytest.raises(Refused, match="holds a run already"):
        create_run(deployment, work)


def test_a_run_that_is_starting_keeps_its_deployment(work: Path, deployment: Deployment) -> None:
    create_run(deployment, work)
    before = (work / "deployment.toml").read_bytes()
    with (work / "journal.jsonl").open("wb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        assert is_being_written(work)
        with pytest.raises(Refused, match="starting"):
            create_run(deployment.model_copy(update={"name": "other"}), work)
    assert not is_being_written(work)
    assert (work / "deployment.toml").read_bytes() == before


def test_a_demo_that_failed_to_start_makes_room(work: Path) -> None:
    demo = demo_deployment(QUICK, target=work, drafter=work, isolation=Isolation.NONE, threads=1)
    create_run(demo, work / "demo")
    (work / "demo" / "journal.jsonl").touch()
    set_earlier_demo_aside(work / "demo")
    assert not (work / "demo").exists()

"""The demo command: what it deploys, what it replaces, what it needs."""

from pathlib import Path

import pytest
import simulation

from specpilot.cli.demo import FULL, QUICK, demo_deployment, set_earlier_demo_aside
from specpilot.cli.main import run
from specpilot.cli.runs import create_run
from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation


def test_the_demo_deploys_builtin_requests_and_is_small(work: Path) -> None:
    for size in (FULL, QUICK):
        found = demo_deployment(
            size, target=work, drafter=work, isolation=Isolation.NAMESPACES, threads=2
        )
        assert found.workload.development == size.development
        assert set(found.workload.benchmarks) == {"gsm8k", "math500", "humaneval", "mbpp",
                                                  "mt_bench"}  # fmt: skip
    assert QUICK.development * QUICK.tokens < FULL.development * FULL.tokens


def test_the_demo_sets_only_an_earlier_demo_aside(work: Path) -> None:
    mine = work / "mine"
    mine.mkdir()
    (mine / "thesis.txt").touch()
    with pytest.raises(Refused, match="not an earlier demo"):
        set_earlier_demo_aside(mine)
    other = work / "other"
    simulation.write_deployment(other, simulation.deployment_of())
    with pytest.raises(Refused, match="not an earlier demo"):
        set_earlier_demo_aside(other)
    named = work / "named"
    simulation.write_deployment(named, simulation.deployment_of(name="demo"))
    with pytest.raises(Refused, match="not an earlier demo"):
        set_earlier_demo_aside(named)
    demo = demo_deployment(QUICK, target=work, drafter=work, isolation=Isolation.NONE, threads=None)
    create_run(demo, work / "demo")
    locked = work / "demo" / "exports" / "tree"
    locked.mkdir(parents=True)
    (locked / "a.py").touch()
    locked.chmod(0o555)
    set_earlier_demo_aside(work / "demo")
    assert not (work / "demo").exists()
    assert (work / "demo-1" / "exports" / "tree" / "a.py").exists()
    create_run(demo, work / "demo")
    set_earlier_demo_aside(work / "demo")
    assert (work / "demo-2").exists()
    assert (mine / "thesis.txt").exists()


def test_the_demo_without_its_drafter_says_what_to_do(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "model").mkdir()
    (work / "model" / "config.json").write_text("{}", encoding="utf-8")
    (work / "model" / "model.safetensors").touch()
    arguments = ["demo", "--target", "model", "--drafter", "missing", "--isolation", "none"]
    assert run(arguments) != 0
    assert "missing" in capsys.readouterr().err

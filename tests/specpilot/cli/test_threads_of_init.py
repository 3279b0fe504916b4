"""The deployment that `init` writes leaves a core to the judge, and says so."""

from pathlib import Path

import pytest

from specpilot.cli.main import run
from specpilot.core.deployment import load_deployment


@pytest.mark.parametrize(("cores", "threads", "said"), [(4, 3, "1 core left"), (1, 1, "")])
def test_init_leaves_the_judge_a_core_where_there_is_one(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    threads: int,
    said: str,
) -> None:
    monkeypatch.setattr("specpilot.cli.init.find_devices", lambda: ["cpu"])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert run(["init", "org/Model", "org/Drafter"]) == 0
    assert load_deployment(work / "deployment.toml").engine.threads == threads
    line = capsys.readouterr().out
    assert f"engine.threads = {threads}" in line
    assert (said in line) if said else ("left to the judge" not in line)

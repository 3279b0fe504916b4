"""Ctrl-C early: one line, and what it says about going on is true."""

import os
import signal
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import simulation

from specpilot import cli
from specpilot.__main__ import main
from specpilot.cli import replay
from specpilot.cli.main import run

COMMANDS = "specpilot.cli.main"


class _Interrupting:
    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == COMMANDS:
            raise KeyboardInterrupt
        return None


def test_an_interrupt_while_modules_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, COMMANDS, raising=False)
    monkeypatch.delattr(cli, "main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupting(), *sys.meta_path])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_interrupt_of_any_command_is_one_line_and_its_own_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(recording: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "command", interrupted)
    assert run(["replay", "x.npz"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("stage", ["sleep 60", ": > run/journal.jsonl; sleep 60"])
def test_a_run_that_is_stopped_before_its_first_line_can_be_resumed(
    stage: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = work / "python"
    script.write_text(f"#!/bin/sh\ntouch begun\n{stage} &\nwait\n", encoding="utf-8")
    script.chmod(0o755)
    deployment = simulation.deployment_of(platform={"devices": ["cpu"], "isolation": "none"})
    simulation.write_deployment(work / "made", deployment)

    def interrupt() -> None:
        while not (work / "begun").exists():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGINT)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", str(script))
            assert run(["optimize", "made/deployment.toml", "--run", "run"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "stopped; continue with 'specpilot resume run'\n"
    assert run(["resume", "run"]) in (0, 2, 5)


def test_a_folder_with_a_deployment_alone_is_no_run_to_resume(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation.write_deployment(work, simulation.deployment_of())
    assert run(["resume", "."]) == 1
    assert "holds no run" in capsys.readouterr().err

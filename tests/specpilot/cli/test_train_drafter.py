"""`specpilot train-drafter` is the engine's trainer: same arguments, its own process."""

import subprocess
import sys

import pytest

from specpilot.cli.main import run
from specpilot.core.errors import ExitCode

FIT = ["fit", "--kind", "dspark", "--target", "T", "--out", "D", "--help"]


@pytest.mark.parametrize(("ended", "code"), [(0, ExitCode.OK), (1, ExitCode.ERROR), (2, 1)])
def test_arguments_and_failures_pass_through(
    monkeypatch: pytest.MonkeyPatch, ended: int, code: int
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        started.append(command)
        return subprocess.CompletedProcess(command, ended)

    monkeypatch.setattr(subprocess, "run", start)
    assert run(["train-drafter", *FIT]) == code
    assert started == [[sys.executable, "-P", "-m", "specengine.train", *FIT]]


def test_every_kind_can_be_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train-drafter", "fit", "--help"]) == 0
    assert "{dflash,dflash2,dspark,eagle3}" in capfd.readouterr().out

"""Ctrl-C more than once: one line, one exit code, nothing left, whatever the moment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import simulation

from specpilot.cli.main import run
from specpilot.cli.runs import write_deployment
from specpilot.core.errors import ExitCode

PLAIN = {"devices": ["cpu"], "isolation": "none"}
COMMAND = [sys.executable, "-m", "specpilot"]


@pytest.mark.parametrize("kind", ["lease_taken", "agent_started"])
def test_every_further_interrupt_changes_nothing(kind: str, work: Path) -> None:
    gate = work / "gate"
    agent = simulation.waiting_agent(gate)
    write_deployment(simulation.deployment_of(platform=PLAIN, agent=agent), work / "d.toml")
    front = subprocess.Popen(
        [*COMMAND, "optimize", "d.toml", "--run", "r", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert front.stdout is not None
    for line in front.stdout:
        if json.loads(line)["kind"] == kind:
            break
    below = psutil.Process(front.pid).children(recursive=True)
    while True:
        try:
            os.killpg(front.pid, signal.SIGINT)
            front.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        break

    assert front.returncode == 130
    assert front.stderr is not None
    assert front.stderr.read() == "stopped; continue with 'specpilot resume r'\n"
    assert [process for process in below if process.is_running()] == []
    gate.touch()
    assert run(["resume", "r"]) == ExitCode.NOTHING_PROMOTED

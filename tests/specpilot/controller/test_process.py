"""The controller as a process: it ends when asked, with its parent, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from simulation import deployment_of, faster, parts_of, state_of, write_deployment

from specpilot.controller.main import main, run_controller

HELPER = Path(__file__).parents[1] / "helpers" / "waiting_controller.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if path.is_file() and (text := path.read_text()):
            return int(text)
        time.sleep(0.02)
    pytest.fail("the agent did not start")


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_ends_its_agents_and_can_be_resumed(
    number: signal.Signals, tmp_path: Path
) -> None:
    note = tmp_path / "child"
    process = subprocess.Popen(
        [sys.executable, str(HELPER), str(tmp_path / "run"), str(note)],
        stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    child = wait_for(note)

    process.send_signal(number)
    _, errors = process.communicate(timeout=120)

    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert "specpilot resume" in errors
    assert is_gone(child)
    run_controller(tmp_path / "run", parts_of(deployment_of(), {"wait": [faster(1.1)]}))
    assert state_of(tmp_path / "run").finished is not None


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    note, identity = tmp_path / "child", tmp_path / "controller"
    program = (
        "import subprocess, sys, pathlib, time\n"
        f"p = subprocess.Popen([sys.executable, {str(HELPER)!r}, {str(tmp_path / 'run')!r}, "
        f"{str(note)!r}])\n"
        f"pathlib.Path({str(identity)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=ENVIRONMENT)
    child = wait_for(note)
    controller = wait_for(identity)

    parent.kill()
    parent.wait()

    assert is_gone(controller)
    assert is_gone(child)


def test_errors_are_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path / "nowhere") == 1
    write_deployment(tmp_path, deployment_of())
    (tmp_path / "journal.jsonl").write_text("{}\n{}\n")
    assert main(tmp_path, parts_of(deployment_of(), {})) == 1

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "deployment.toml: cannot be read" in lines[0]
    assert "line 1 is damaged" in lines[1]

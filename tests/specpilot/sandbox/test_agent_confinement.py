"""An agent edits its worktree and reaches its socket; the rest of the run is not there."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation
from specpilot.sandbox.agent import confine_agent
from specpilot.sandbox.probe import probe

PROGRAM = """
import json, os, pathlib, socket, subprocess
import specpilot, specpilot.agents, specengine
def attempt(action):
    try:
        return str(action())
    except OSError as error:
        return type(error).__name__
run = pathlib.Path(os.environ["RUN"])
client = socket.socket(socket.AF_UNIX)
pathlib.Path("edited").write_text("x")
subprocess.run(["git", "init", "--quiet", "."], check=True)
print(json.dumps({
    "journal": attempt(lambda: (run / "journal.jsonl").read_text()),
    "sealed": attempt(lambda: (run / "sealed" / "requests.json").read_text()),
    "other": attempt(lambda: list((run / "worktrees" / "other").iterdir())),
    "socket": attempt(lambda: client.connect(str(run / "control" / "mine.sock"))),
    "sockets": sorted(os.listdir(run / "control")),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "prompts": os.listdir(pathlib.Path(specpilot.__file__).parent / "workload" / "prompts"),
    "package": attempt(lambda: pathlib.Path(specpilot.agents.__file__).write_text("")),
    "brief": os.environ["BRIEF"],
    "state": pathlib.Path(run / "state" / "mine" / "brief.json").read_text(),
    "forged": attempt(lambda: (run / "state" / "mine" / "agent.log").mkdir()),
}))
"""


def make_run(folder: Path) -> tuple[Path, tuple[Path, ...]]:
    run = folder / "run"
    for name in ("worktrees/mine", "worktrees/other", "state/mine", "sealed", "control"):
        (run / name).mkdir(parents=True)
    (run / "journal.jsonl").write_text("{}", encoding="utf-8")
    (run / "state" / "mine" / "brief.json").write_text("mine", encoding="utf-8")
    (run / "sealed" / "requests.json").write_text("{}", encoding="utf-8")
    return run, (run / "journal.jsonl", run / "sealed", run / "worktrees" / "other")


@pytest.mark.skipif(
    Isolation.NAMESPACES in probe().unavailable, reason="bubblewrap does not work on this machine"
)
def test_an_agent_sees_its_own_part_of_the_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, hidden = make_run(tmp_path)
    monkeypatch.chdir(run / "control")
    servers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for server, name in zip(servers, ("mine.sock", "other.sock"), strict=True):
        server.bind(name)
        server.listen()
    confined = confine_agent(
        run / "worktrees" / "mine",
        run / "state" / "mine",
        run / "control" / "mine.sock",
        Isolation.NAMESPACES,
        hidden=hidden,
    )
    # The program connects by a relative path: addresses of sockets are short.
    program = PROGRAM.replace('str(run / "control" / "mine.sock")', '"../../control/mine.sock"')
    added = {"RUN": str(run), "BRIEF": "brief.md"}
    done = subprocess.run(
        [*confined.prefix, "python", "-c", program],
        env=confined.environment | added,
        capture_output=True,
        check=False,
        text=True,
    )
    for server in servers:
        server.close()
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["journal"] == seen["sealed"] == seen["other"] == "FileNotFoundError"
    assert seen["socket"] == "None"
    assert seen["sockets"] == ["mine.sock"]
    assert seen["interfaces"] == ["lo"]
    assert seen["package"] == "OSError"
    assert seen["prompts"] == []
    assert (seen["state"], seen["forged"]) == ("mine", "OSError")
    assert seen["brief"] == "brief.md"
    assert (run / "worktrees" / "mine" / "edited").exists()


def test_a_state_folder_that_holds_the_journal_is_refused(tmp_path: Path) -> None:
    run, hidden = make_run(tmp_path)
    (run / "control" / "mine.sock").touch()
    with pytest.raises(Refused, match="would show"):
        confine_agent(
            run / "worktrees" / "mine",
            run,
            run / "control" / "mine.sock",
            Isolation.NAMESPACES,
            hidden=hidden,
        )


def test_without_isolation_the_environment_is_still_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "secret")
    run, hidden = make_run(tmp_path)
    confined = confine_agent(
        run / "worktrees" / "mine",
        run / "state" / "mine",
        run / "control" / "mine.sock",
        Isolation.NONE,
        hidden=hidden,
    )
    assert confined.prefix == ()
    assert "PROVIDER_KEY" not in confined.environment
    assert Path(confined.environment["HOME"]).is_relative_to(run / "state" / "mine")

"""The command line from outside: what it prints, writes, refuses, and its exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import simulation

from specpilot.cli.display import render
from specpilot.cli.doctor_checks import client_overhead, idle_cores, stock_identity
from specpilot.cli.earlier_runs import Speed
from specpilot.cli.follow import Follower
from specpilot.cli.main import run
from specpilot.cli.plan import estimate, smallest_gain
from specpilot.cli.runs import controller_process
from specpilot.cli.serve import find_checkout, installed_stock, server_arguments
from specpilot.cli.watching import Watch
from specpilot.core.deployment import load_deployment, parse_deployment
from specpilot.core.errors import ExitCode, Refused

PLAIN = {"devices": ["cpu"], "isolation": "none"}
COMMAND = [sys.executable, "-m", "specpilot"]


def write(folder: Path, **changes: Any) -> Path:
    """A deployment file of a simulated engine."""
    simulation.write_deployment(folder, simulation.deployment_of(platform=PLAIN, **changes))
    return folder / "deployment.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess]:
    """A folder in which a simulated run was optimized by the command."""
    folder = tmp_path_factory.mktemp("optimize")
    file = write(folder)
    done = subprocess.run(
        [*COMMAND, "optimize", str(file)], cwd=folder, capture_output=True, text=True, check=False
    )
    return folder / "runs" / "simulated", done


def test_optimize_prints_lines_a_summary_and_writes_the_report(
    finished: tuple[Path, subprocess.CompletedProcess],
) -> None:
    folder, done = finished
    # Unisolated: promoted in development, refused by the sealed final.
    assert done.returncode in (ExitCode.VOID, ExitCode.REFUSED)
    assert "\x1b[" not in done.stdout
    assert "round 1, phase 4: sealed final" in done.stdout
    assert "best_first_tree" in done.stdout or "r1-best-first-tree" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    report = json.loads((folder / "report" / "report.json").read_text(encoding="utf-8"))
    assert report["directions"]
    assert (folder / "report" / "index.html").is_file()


def test_a_second_optimize_refuses_to_touch_the_run(
    finished: tuple[Path, subprocess.CompletedProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    before = (folder / "journal.jsonl").read_bytes()
    assert run(["optimize", str(folder / "deployment.toml"), "--run", str(folder)]) == 5
    assert "specpilot resume" in capsys.readouterr().err
    assert (folder / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("command", ["status", "report", "ceiling"])
def test_reading_commands_print_json_and_text(
    finished: tuple[Path, subprocess.CompletedProcess],
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    folder, _ = finished
    assert run([command, str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert run([command, str(folder)]) == 0
    assert "\x1b[" not in capsys.readouterr().out


def test_a_finished_run_is_not_running_and_resumes_to_its_outcome(
    finished: tuple[Path, subprocess.CompletedProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, done = finished
    assert controller_process(folder) is None
    assert run(["stop", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": False, "pid": None}
    assert run(["resume", str(folder)]) == done.returncode


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_front_leaves_nothing_and_resume_goes_on(
    work: Path, capsys: pytest.CaptureFixture[str], end: signal.Signals
) -> None:
    gate = work / "gate"
    file = write(work, agent=simulation.waiting_agent(gate))
    front = subprocess.Popen(
        [*COMMAND, "optimize", str(file), "--json"], stdout=subprocess.PIPE, text=True
    )
    assert front.stdout is not None
    kinds = []
    for line in front.stdout:
        kinds.append(json.loads(line)["kind"])
        if kinds[-1] == "agent_started":
            break
    below = psutil.Process(front.pid).children(recursive=True)
    assert below
    front.send_signal(end)
    front.stdout.close()
    front.wait(120)
    _, alive = psutil.wait_procs(below, timeout=120)
    assert alive == []
    folder = Path("runs/simulated")
    assert controller_process(folder) is None
    gate.touch()
    assert run(["resume", str(folder)]) == ExitCode.NOTHING_PROMOTED
    assert "resumed" in capsys.readouterr().out
    events = Follower(folder / "journal.jsonl").new_lines()
    assert events[-1].kind == "run_finished"


BAD: list[tuple[list[str], int, str]] = [
    (["optimize", "missing.toml"], 1, "cannot be read"),
    (["status", "nowhere"], 1, "holds no run"),
    (["report", "nowhere"], 1, "holds no run"),
    (["resume", "nowhere"], 1, "holds no run"),
    (["stop", "nowhere"], 1, "holds no run"),
    (["ceiling", "nowhere"], 1, "holds no run"),
    (["force", "nowhere"], 1, "holds no run"),
    (["replay", "missing.npz"], 1, "not a file of recordings"),
    (["replay", "missing.npz", "--nodes", "8,x"], 1, "not a list of budgets"),
    (["replay", "missing.npz", "--nodes", "1"], 1, "not a list of budgets"),
    (["memory", "show", "nothing"], 5, "no entry"),
    (["memory", "import", "missing.zip"], 5, "not a memory export"),
    (["ctl", "check"], 5, "SPECPILOT_SOCKET"),
    (["ctl", "nonsense"], 1, "nonsense"),
    (["nonsense"], 1, "nonsense"),
    (["optimize"], 1, "specpilot optimize: Missing argument 'deployment'; see 'specpilot opt"),
    (["status", "a", "b"], 1, "specpilot status: Got unexpected extra argument"),
    (["memory", "lsit"], 1, "specpilot memory: No such command 'lsit'"),
    (["resume", "--rouns", "2"], 1, "specpilot resume: No such option: --rouns"),
    (["doctor", "missing.toml"], 1, "cannot be read"),
    (["plan", "missing.toml"], 1, "cannot be read"),
    (["serve", "missing.toml"], 1, "cannot be read"),
    (["init", "m", "d", "--out", "taken.toml"], 5, "exists already"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), BAD, ids=lambda v: str(v)[:40])
def test_bad_calls_end_with_one_line_and_a_code(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.delenv("SPECPILOT_SOCKET", raising=False)
    (work / "taken.toml").touch()
    assert run(arguments) == code
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert sorted(path.name for path in work.iterdir()) == ["taken.toml"]


def test_a_deployment_with_an_unknown_key_names_the_nearest(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(work)
    text = file.read_text(encoding="utf-8").replace("max_rounds", "max_round")
    file.write_text(text, encoding="utf-8")
    assert run(["plan", str(file)]) == 1
    assert "did you mean 'max_rounds'" in capsys.readouterr().err


def test_a_damaged_journal_names_its_line(
    work: Path,
    finished: tuple[Path, subprocess.CompletedProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (finished[0] / "journal.jsonl").read_bytes().splitlines(keepends=True)
    Path("bad").mkdir()
    (work / "bad" / "journal.jsonl").write_bytes(
        b"".join([*lines[:3], lines[3].replace(b'"kind":"', b'"kind":"x'), *lines[4:]])
    )
    assert run(["report", "bad"]) == 1
    assert re.search(r"line 4\b", capsys.readouterr().err)


def test_plan_grows_with_the_work_and_power_with_the_pairs(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(work)
    assert run(["plan", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu_hours"] == 0
    assert found["pairs"] == 24
    larger = load_deployment(file).model_dump(mode="json", exclude_none=True)
    larger["workload"]["development"] = 48
    more = estimate(parse_deployment(larger, where="test"), Speed(40.0, "given"))
    assert more["hours"] > found["hours"]
    assert more["power"][0]["smallest_gain"] < found["power"][0]["smallest_gain"]
    assert smallest_gain(0.02, 200, 5) < smallest_gain(0.05, 200, 5)
    assert smallest_gain(0.02, 5, 5) is None
    assert run(["plan", str(file)]) == 0
    assert "at most" in capsys.readouterr().out


def test_init_writes_a_deployment_that_loads(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", "org/Model", "org/Drafter"]) == 0
    found = load_deployment(work / "deployment.toml")
    assert (found.target.model, found.name) == ("org/Model", "model")
    said = capsys.readouterr()
    assert "specpilot plan" in said.out
    assert said.err.count("taken for a hub id") == 2
    (work / "here").mkdir()
    assert run(["init", "here", str(work / "here"), "--out", "local.toml"]) == 0
    assert capsys.readouterr().err == ""


def test_doctor_reports_each_check_and_fails_for_what_fails(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(work, agent={"kind": "command", "command": ["no-such-program"]})
    assert run(["doctor", str(file), "--json"]) == 1
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert not found["agent"]["ok"]
    assert "install" in found["agent"]["fix"]
    assert not found["isolation"]["ok"]
    assert found["git"]["ok"]
    assert run(["doctor", str(file)]) == 1
    assert "failed agent: no-such-program not found; install" in capsys.readouterr().out


def test_doctor_finds_other_work_on_the_cores() -> None:
    table = {"name": "x", "target": {"model": "x"}, "drafter": {"kind": "dflash2", "model": "x"}}
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (found,) = idle_cores(parse_deployment(table, where="test"))
    finally:
        other.kill()
        other.wait()
    assert not found.holds
    assert "used by other work" in found.detail
    on_gpu = parse_deployment({**table, "platform": {"devices": ["cuda:0"]}}, where="test")
    assert idle_cores(on_gpu) == []


def test_doctor_measures_the_client_and_proves_stock() -> None:
    deployment = parse_deployment(
        {"name": "x", "target": {"model": "x"}, "drafter": {"kind": "dflash2", "model": "x"}},
        where="test",
    )
    (overhead,) = client_overhead(deployment)
    assert re.fullmatch(r"\d+\.\d\d ms per request", overhead.detail)
    (identity,) = stock_identity(deployment)
    assert identity.holds


def test_replay_gives_tau_for_every_budget(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, 20)
    ids = np.stack([rng.permutation(50)[:16].reshape(4, 4) for _ in range(19)])
    edge = np.log(rng.dirichlet(np.ones(4), size=(19, 4, 4))).astype(np.float32)
    edge[:, 0] = edge[:, 0, :1]
    np.savez("one.npz", **{"0.tokens": tokens, "0.ids": ids, "0.edge": edge})
    taus = {}
    for tree in ("chain", "best_first", "oracle"):
        assert run(["replay", "one.npz", "--tree", tree, "--nodes", "5,17", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        taus[tree] = [row["tau"] for row in rows]
    assert taus["chain"][0] <= taus["best_first"][1] <= taus["oracle"][1] + 1e-9
    assert run(["replay", "one.npz"]) == 0
    assert "exact replay" in capsys.readouterr().out


def test_memory_of_nothing_lists_nothing(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["memory", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["memory", "verify"]) == 0


def test_ctl_sends_one_line_and_prints_the_answer(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [
        b'{"ok":true,"result":{"headroom":0.1}}\n',
        b'{"ok":false,"error":{"what":"spent","where":"w","fix":"f","exit_code":4}}\n',
        b'{"ok":tr',
    ]
    asked: list[Any] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("ctl.sock")
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                asked.append(json.loads(connection.makefile("rb").readline()))
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    monkeypatch.setenv("SPECPILOT_SOCKET", "ctl.sock")
    options = ["--option", "nodes=32", "--option", "tree=best_first", "--method", "replay"]
    assert run(["ctl", "headroom", *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"headroom": 0.1}
    assert run(["ctl", "submit"]) == ExitCode.BUDGET_SPENT
    assert run(["ctl", "close", "--reason", "x", "--bound", "0.01"]) == 1
    thread.join()
    listener.close()
    assert asked[0] == {
        "op": "headroom",
        "arguments": {"options": {"nodes": 32, "tree": "best_first"}, "method": "replay"},
    }
    assert asked[2]["arguments"] == {"reason": "x", "bound": 0.01}


def test_serve_finds_stock_without_a_run_and_builds_the_server_command(work: Path) -> None:
    deployment = parse_deployment(
        {
            "name": "x",
            "target": {"model": str(work)},
            "drafter": {"kind": "dflash2", "model": str(work)},
            "engine": {"kind": "embedded", "threads": 2},
        },
        where="test",
    )
    checkout = installed_stock(deployment, work / "stock")
    assert (checkout.path / "specengine" / "__init__.py").is_file()
    arguments = server_arguments(deployment, checkout, autoregressive=False)
    assert arguments[arguments.index("--tree-hash") + 1] == checkout.system.tree_hash
    assert arguments[arguments.index("--threads") + 1] == "2"
    assert "--drafter" not in server_arguments(deployment, checkout, autoregressive=True)
    with pytest.raises(Refused, match="no system 'best'"):
        find_checkout(work / "no-run", "best")


def test_serve_finds_systems_of_a_run(finished: tuple[Path, subprocess.CompletedProcess]) -> None:
    folder, _ = finished
    best = find_checkout(folder, "best").system
    assert find_checkout(folder, best.tree_hash[:10]).system == best
    assert find_checkout(folder, "stock").system != best
    with pytest.raises(Refused, match="no system"):
        find_checkout(folder, "0123456789")


def test_forcing_a_simulated_run_asks_no_hub(
    finished: tuple[Path, subprocess.CompletedProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["force", str(finished[0])]) == ExitCode.REFUSED
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "engine simulated: has no model" in error


def test_a_follower_gives_each_whole_line_once(
    work: Path, finished: tuple[Path, subprocess.CompletedProcess]
) -> None:
    raw = (finished[0] / "journal.jsonl").read_bytes()
    path = work / "journal.jsonl"
    follower = Follower(path)
    assert follower.new_lines() == ()
    seen = []
    for start in range(0, len(raw), 1000):
        with path.open("ab") as stream:
            stream.write(raw[start : start + 1000])
        seen += follower.new_lines()
    assert [line.seq for line in seen] == list(range(len(raw.splitlines())))


def test_the_live_table_draws_every_moment(
    finished: tuple[Path, subprocess.CompletedProcess],
) -> None:
    from rich.console import Console

    console = Console(width=100, file=Path(os.devnull).open("w", encoding="utf-8"), record=True)  # noqa: SIM115
    watch = Watch(finished[0])
    for line in Follower(finished[0] / "journal.jsonl").new_lines():
        watch.add(line)
        console.print(render(watch))
    text = console.export_text()
    assert "r1-best-first-tree" in text
    assert "+ " in text
    assert "closed (closed_on_bound)" in text

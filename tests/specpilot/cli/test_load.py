"""Work of others on the cores: named, with a number of threads that would still be free."""

import os
import subprocess
import sys

import psutil
import pytest
import simulation

from specpilot.cli.load import Load, advice, measure_load, note_load


def test_the_busiest_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one process: what else runs on this machine may be busier."""
    everyone = psutil.process_iter
    program = "print(flush=True)\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert other.stdout is not None
    monkeypatch.setattr(
        psutil, "process_iter", lambda fields: (p for p in everyone(fields) if p.pid == other.pid)
    )
    try:
        other.stdout.readline()
        load = measure_load(0.5)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert load.disturbs
    assert f"(pid {other.pid})" in load.spell()
    assert 1 <= load.free_cores <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("free", "threads", "text"), [(1, 2, "engine.threads = 1"), (3, 2, "")])
def test_fewer_threads_are_proposed_where_they_would_help(
    free: int, threads: int, text: str
) -> None:
    deployment = simulation.deployment_of(engine={"kind": "simulated", "threads": threads})
    said = advice(Load(90.0, free, ()), deployment)
    assert said.startswith("stop that work")
    assert (text in said) if text else ("threads" not in said)


def test_the_note_is_one_line_and_only_where_cores_are_measured_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = Load(97.0, 1, ("ld (pid 7) 97%",))
    monkeypatch.setattr("specpilot.cli.load.measure_load", lambda: load)
    engine = {"kind": "embedded", "threads": 4}
    note_load(simulation.deployment_of(engine=engine), "--threads")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in ("note: the busiest core is 97% used", "ld (pid 7) 97%", "--threads 1"):
        assert part in said
    note_load(simulation.deployment_of(engine=engine, platform={"devices": ["cuda:0"]}))
    note_load(simulation.deployment_of())
    monkeypatch.setattr("specpilot.cli.load.measure_load", lambda: Load(3.0, 2, ()))
    note_load(simulation.deployment_of(engine=engine))
    assert capsys.readouterr().err == ""

"""Signs of life: what is measured now, how long it took, how long it will take, and when it was."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import simulation

from specpilot.cli.display import HEARTBEAT_SECONDS, PlainLines, render
from specpilot.cli.estimate import paired_run_seconds, remaining, spell_seconds, whole_run
from specpilot.cli.main import run
from specpilot.cli.watching import Watch
from specpilot.controller.journal import JournalLine, read_journal
from specpilot.controller.main import run_controller
from specpilot.controller.progress import PROGRESS_FILE, Standing
from specpilot.loop.state import fold


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished simulated run."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    deployment = simulation.deployment_of()
    simulation.write_deployment(folder, deployment)
    run_controller(folder, simulation.parts_of(deployment, {"sound": [simulation.faster(1.2)]}))
    return folder


@pytest.fixture(scope="module")
def lines(finished: Path) -> tuple[JournalLine, ...]:
    """Its journal."""
    return read_journal(finished / "journal.jsonl").lines


class Clock:
    """A clock that a test sets."""

    def __init__(self, start: datetime) -> None:
        self.time = start

    def __call__(self) -> datetime:
        return self.time


def until(lines: tuple[JournalLine, ...], kind: str, count: int = 1) -> tuple[JournalLine, ...]:
    """The journal up to the `count`-th line of a kind."""
    places = [index for index, line in enumerate(lines) if line.kind == kind]
    return lines[: places[count - 1] + 1]


def in_first_lease(lines: tuple[JournalLine, ...], folder: Path, **standing: object) -> Watch:
    """A watch half a minute after the noise band's lease was taken."""
    seen = until(lines, "lease_taken")
    taken = datetime.fromisoformat(seen[-1].time)
    stock = fold(line.event() for line in seen).stock
    assert stock is not None
    look = {
        "at": (taken + timedelta(seconds=29)).isoformat(timespec="seconds"),
        "doing": "plays",
        "tree_hash": stock.system.tree_hash,
        "autoregressive": False,
        "in_flight": 1,
        "played": 2 * 24 + 5,
        "requests": 24,
        "arms": 2,
        "passes": 2,
    }
    (folder / "logs").mkdir(exist_ok=True)
    text = Standing.model_validate(look | standing).model_dump_json()
    (folder / PROGRESS_FILE).write_text(text, encoding="utf-8")
    watch = Watch(folder, unit=100.0, now=Clock(taken + timedelta(seconds=30)))
    for line in seen:
        watch.add(line)
    return watch


def test_a_long_phase_says_which_system_and_which_pass(
    lines: tuple[JournalLine, ...], tmp_path: Path
) -> None:
    watch = in_first_lease(lines, tmp_path)
    assert watch.doing() == ("cpu: phase0 (noise band), pass 2 of 2, request 3 of 24: stock plays")
    crowded = in_first_lease(lines, tmp_path, in_flight=4, autoregressive=True)
    assert crowded.doing().endswith("AR plays, 4 at once")
    scoring = in_first_lease(lines, tmp_path, passes=0, doing="scores outputs")
    assert scoring.doing() == "cpu: phase0 (noise band), stock scores outputs"


def test_a_hint_of_other_work_is_not_shown(lines: tuple[JournalLine, ...], tmp_path: Path) -> None:
    watch = in_first_lease(lines, tmp_path, at="2000-01-01T00:00:00+00:00")
    assert watch.doing() == "cpu: phase0 (noise band)"
    over = Watch(tmp_path)
    for line in lines:
        over.add(line)
    assert over.doing() == ""


def test_expected_time_comes_from_the_runs_own_first_paired_run(
    lines: tuple[JournalLine, ...], tmp_path: Path
) -> None:
    deployment = simulation.deployment_of()
    whole = whole_run(deployment, 100.0)
    watch = in_first_lease(lines, tmp_path)
    assert watch.times().startswith("30 s so far, about ")
    assert watch.times().endswith(f"{spell_seconds(whole - 30)} left")
    left = []
    for count in range(1, len(lines) + 1):
        state = fold(line.event() for line in lines[:count])
        left.append(remaining(deployment, state, 1.0))
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx(whole / 100.0)
    assert left[-1] == 0.0


def test_a_pause_before_a_resumption_is_no_work(
    lines: tuple[JournalLine, ...], tmp_path: Path
) -> None:
    seen = until(lines, "lease_taken")
    clock = Clock(datetime.fromisoformat(seen[-1].time) + timedelta(hours=9))
    watch = Watch(tmp_path, unit=1.0, begun=clock.time, now=clock)
    for line in seen:
        watch.add(line)
    clock.time += timedelta(seconds=3)
    assert watch.times().startswith("3 s so far, about ")
    clock.time += timedelta(seconds=60)
    assert watch.times() == "63 s so far, longer than expected"


def test_more_work_takes_longer() -> None:
    deployment = simulation.deployment_of()
    two = simulation.deployment_of(platform={"devices": ["cuda:0", "cuda:1"]})
    one = simulation.deployment_of(platform={"devices": ["cuda:0"]})
    assert paired_run_seconds(deployment, 10.0) > paired_run_seconds(deployment, 20.0)
    assert paired_run_seconds(two, 1.0) < paired_run_seconds(one, 1.0)
    assert whole_run(deployment, 1.0, 3) > whole_run(deployment, 1.0, 1)
    assert [spell_seconds(s) for s in (42, 400, 8000)] == ["42 s", "7 min", "2.2 h"]


def test_plain_lines_say_that_the_run_lives(
    lines: tuple[JournalLine, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = in_first_lease(lines, tmp_path)
    clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
    plain = PlainLines(watch, clock)
    for _ in range(int(3 * HEARTBEAT_SECONDS)):
        clock.time += timedelta(seconds=1)
        plain.show(())
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[0].startswith("00:00:20  ... cpu: phase0 (noise band), pass 2 of 2, request 3 of")
    assert "30 s so far, about " in said[0]
    plain.show(lines[-1:])
    plain.show(())
    assert "finished: promoted" in capsys.readouterr().out


def test_status_labels_its_times(
    finished: Path, lines: tuple[JournalLine, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "of work" in said
    assert "finished: promoted" in said.splitlines()[0]
    assert f"ago at {datetime.fromisoformat(lines[-1].time):%Y-%m-%d %H:%M:%S} UTC" in said
    assert "A/A noise" in said
    assert run(["status", str(finished), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["running"], found["doing"]) == (False, None)
    assert found["last_event_at"] == lines[-1].time


def test_planned_headroom_is_called_planned(lines: tuple[JournalLine, ...], tmp_path: Path) -> None:
    from rich.console import Console

    watch = Watch(tmp_path)
    for line in lines:
        if line.kind == "directions_planned":
            data = json.loads(json.dumps(line.data))
            for plan in data["plans"]:
                plan["expected_headroom"] = 0.25
            line = line.model_copy(update={"data": data})
        watch.add(line)
    console = Console(width=120, record=True, quiet=False, file=(tmp_path / "x").open("w"))
    console.print(render(watch))
    assert "+25.0% planned" in console.export_text()

"""Ends that are no verdict: interrupts, damaged journals, full disks, controllers that vanish."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import simulation

from specpilot.cli import main
from specpilot.cli.display import choose_display
from specpilot.cli.drive import drive
from specpilot.cli.follow import Follower
from specpilot.cli.output import Finished
from specpilot.cli.runs import controller_process, write_deployment
from specpilot.cli.watching import Watch
from specpilot.controller import main as controller
from specpilot.core.errors import JournalError, SpecPilotError

PLAIN = {"devices": ["cpu"], "isolation": "none"}
COMMAND = [sys.executable, "-m", "specpilot"]


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise Finished(130)

    monkeypatch.setattr(main, "build_app", lambda: interrupted)
    assert main.run(["optimize", "x.toml"]) == 130


@pytest.mark.parametrize("damage", [b"not json\n", b"\xff\n", b"[1]\n", b'{"seq": 1}\n'])
def test_a_damaged_line_is_one_error_that_names_the_file(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(damage)
    with pytest.raises(JournalError, match=r"journal\.jsonl"):
        Follower(path).new_lines()


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ("No space left", "free disk space")),
        (OSError(errno.EFBIG, "File too large"), ("File too large", "free disk space")),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), ("/x/y", "may write")),
        (FileNotFoundError(errno.ENOENT, "No such file", "/x/z"), ("/x/z", "check the path")),
    ],
)
def test_what_the_system_refuses_is_one_line_of_front_and_controller(
    error: OSError,
    parts: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(main, "build_app", lambda: refused)
    monkeypatch.setattr(controller, "run_controller", refused)
    for end in (lambda: main.run(["report", "a-run"]), lambda: controller.main(tmp_path)):
        assert end() == 1
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        assert all(part in text for part in parts)


def play(folder: Path, *arguments: str, kibibytes: int | None = None) -> tuple[int, str]:
    """Exit code and standard error of the command in a folder, where files may grow only so far."""

    def limited() -> None:
        if kibibytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (kibibytes << 10, kibibytes << 10))

    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        preexec_fn=limited,
    )  # fmt: skip
    return done.returncode, done.stderr


def write_simulated(folder: Path) -> None:
    """`made/deployment.toml` of a short simulated run."""
    two = {"kind": "playbook", "max_directions": 2}
    deployment = simulation.deployment_of(platform=PLAIN, agent=two)
    simulation.write_deployment(folder / "made", deployment)


@pytest.fixture(scope="module")
def code_of_a_whole_run(tmp_path_factory: pytest.TempPathFactory) -> int:
    folder = tmp_path_factory.mktemp("whole")
    write_simulated(folder)
    return play(folder, "optimize", "made/deployment.toml", "--run", "b")[0]


@pytest.mark.parametrize("kibibytes", [1, 8])
def test_a_full_disk_is_one_line_and_loses_nothing(
    kibibytes: int, work: Path, code_of_a_whole_run: int
) -> None:
    """1 KiB holds no line of the journal, 8 KiB some lines but not the first recordings."""
    write_simulated(work)
    optimize = ("optimize", "made/deployment.toml", "--run", "a")
    code, said = play(work, *optimize, kibibytes=kibibytes)
    assert (code, said.count("\n")) == (1, 1)
    assert "File too large" in said
    assert "free disk space" in said
    assert play(work, "resume", "a")[0] == code_of_a_whole_run
    kinds = [line.kind for line in Follower(work / "a/journal.jsonl").new_lines()]
    assert kinds[-1] == "run_finished"


@pytest.mark.parametrize(
    ("program", "text"), [("exit 1", "its log is empty"), ("kill -9 $$", "signal 9")]
)
def test_a_controller_that_cannot_speak_is_spoken_for(
    program: str, text: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = work / "python"
    script.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(SpecPilotError, match=text) as caught:
        drive(work / "run", choose_display(Watch(work / "run"), json_lines=True))
    assert "specpilot resume" in caught.value.fix


def test_a_deployment_that_cannot_be_replaced_stays(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = work / "deployment.toml"
    path.write_text("kept", encoding="utf-8")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(SpecPilotError, match=r"deployment\.toml.*No space"):
        write_deployment(simulation.deployment_of(), path)
    assert path.read_bytes() == b"kept"
    assert [item.name for item in work.iterdir()] == ["deployment.toml"]


LINES = {
    "deep": b"[" * 100_000,
    "text for a number": b'{"kind": "controller_started", "data": {"pid": "x"}}',
    "no data": b'{"kind": "controller_started"}',
    "a list": b'["controller_started"]',
    "no process": b'{"kind": "controller_started", "data": {"pid": -1}}',
    "huge": b'{"kind": "controller_started", "data": {"pid": 1%s}}' % (b"0" * 40),
    "byte order mark": None,
}


@pytest.mark.parametrize("form", LINES)
def test_every_command_survives_a_damaged_line(
    form: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = simulation.deployment_of(platform=PLAIN)
    simulation.write_deployment(work / "r", deployment)
    parts = simulation.parts_of(deployment, {})
    assert simulation.run_killed(work / "r", parts, at=4, torn=False)
    path = work / "r" / "journal.jsonl"
    line, whole = LINES[form], path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + whole if line is None else whole + line + b"\n")

    for command in ("status", "report", "ceiling", "force", "resume"):
        assert main.run([command, "r"]) in (1, 5)
        said = capsys.readouterr().err
        assert said.count("\n") == 1, (command, said)
        assert "journal.jsonl" in said or command == "force"
    assert controller_process(work / "r") is None


def test_a_folder_that_is_taken_away_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = work / "python"
    script.write_text("#!/bin/sh\nmv run moved\nexit 1\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(SpecPilotError, match="run: was removed or moved"):
        drive(Path("run"), choose_display(Watch(work / "run"), json_lines=True))


def test_a_report_that_cannot_be_written_says_why(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = simulation.deployment_of(platform=PLAIN)
    simulation.write_deployment(work / "r", deployment)
    simulation.run_killed(work / "r", simulation.parts_of(deployment, {}), at=4, torn=False)
    (work / "r" / "report").touch()
    assert main.run(["report", "r"]) == 1
    said = capsys.readouterr().err
    assert "File exists" in said
    assert "free" not in said


def test_a_file_may_be_called_partial(work: Path) -> None:
    write_deployment(simulation.deployment_of(), work / "d.partial")
    assert [item.name for item in work.iterdir()] == ["d.partial"]

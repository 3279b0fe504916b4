"""What an agent leaves in its worktree to crash or stop the controller is refused, in time."""

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from simulation import call, commit_all, deployment_of, parts_of, state_of, write_deployment

from specpilot.agents.base import AgentLimits, Brief, Workspace
from specpilot.agents.events import ResultEvent
from specpilot.controller.git import GitError, git
from specpilot.controller.main import run_controller
from specpilot.controller.systems import SystemRepository
from specpilot.controller.trees import ForbiddenPath, parse_entries
from specpilot.controller.worktrees import remove
from specpilot.core.errors import Refused
from specpilot.core.system import System
from specpilot.core.verdict import Reason
from specpilot.engines.simulated import SimulatedAdapter


@pytest.fixture
def systems(tmp_path: Path) -> SystemRepository:
    return SystemRepository(tmp_path)


@pytest.fixture
def stock(systems: SystemRepository) -> System:
    return systems.commit_stock(SimulatedAdapter().stock_tree())


def write(worktree: Path, name: bytes) -> None:
    path = Path(os.fsdecode(os.fsencode(worktree) + b"/" + name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (b"caf\xe9.txt", "is not UTF-8"),
        (b"specengine/caf\xe9.py", "is not UTF-8"),
        (b"specengine/two\nlines.py", "holds control characters"),
        (b"specengine/\x1b[2J.py", "holds control characters"),
        (b"specengine/" + b"long/" * 60 + b"x.py", "is longer than 255 bytes"),
    ],
)
def test_names_that_no_journal_or_disk_takes_are_refused(
    name: bytes, why: str, systems: SystemRepository, stock: System
) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    write(worktree, name)
    commit_all(worktree)

    with pytest.raises(ForbiddenPath, match=why) as caught:
        systems.collect("d", stock.commit)
    assert str(caught.value).isprintable()


def test_a_name_longer_than_a_disk_takes_is_refused_before_it_is_written() -> None:
    line = b"100644 blob " + b"a" * 40 + b" 1\tspecengine/" + b"n" * 300 + b"\0"
    with pytest.raises(ForbiddenPath, match="longer than 255"):
        parse_entries(line)


def _pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def _link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("place", ["config", "HEAD", "packed-refs", "objects/info/alternates"])
@pytest.mark.parametrize("make", [_pipe, _socket, _link])
def test_what_git_would_wait_for_is_refused_at_once(
    make: Callable[[Path], None], place: str, systems: SystemRepository, stock: System
) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    make(worktree / ".git" / place)

    with pytest.raises(Refused, match="is neither a file nor a folder"):
        systems.collect("d", stock.commit)
    again = systems.open_worktree("d", stock.commit)

    assert (again / ".git" / "config").is_file()
    assert (systems.folder.parent / "unreadable" / "d").is_dir()
    assert systems.open_worktree("d", stock.commit) == again


def test_pipes_among_the_sources_do_not_matter(systems: SystemRepository, stock: System) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    os.mkfifo(worktree / "specengine" / "pipe")
    write(worktree, b"specengine/new.py")
    commit_all(worktree)

    assert systems.collect("d", stock.commit).tree_hash != stock.tree_hash


def test_a_command_that_waits_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    os.mkfifo(tmp_path / "included")
    (tmp_path / ".git" / "config").write_text(f"[include]\npath = {tmp_path}/included\n")
    upload = f"git -c include.path={tmp_path}/included upload-pack"
    started = time.monotonic()

    with pytest.raises(GitError, match=r"git rev-parse failed.*did not end in 1 s"):
        git(tmp_path, "rev-parse", "HEAD", seconds=1)
    (tmp_path / ".git" / "config").write_text("")
    with pytest.raises(GitError, match=r"git fetch failed.*did not end in 1 s"):
        git(tmp_path, "fetch", "--upload-pack", upload, str(tmp_path), seconds=1)

    assert time.monotonic() - started < 60
    while any(str(tmp_path).encode() in _content(p) for p in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() - started < 60, "something was left behind"
        time.sleep(0.02)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_folder_that_is_gone_is_a_git_error(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="No such file"):
        git(tmp_path / "gone", "rev-parse", "HEAD")


class Acting:
    """Does something to its worktree, then submits."""

    name = "acting"

    def __init__(self, act: Callable[[Path], None]) -> None:
        self._act = act

    async def start(self, brief: Brief, workspace: Workspace, limits: AgentLimits):
        self._act(workspace.worktree)
        await call(workspace.socket, "submit", {})
        yield ResultEvent(summary="half a pair \ud800 and\ntwo lines")

    async def stop(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda tree: write(tree, b"caf\xe9.txt") or commit_all(tree), Reason.FORBIDDEN_PATH),
        (lambda tree: _pipe(tree / ".git" / "config"), Reason.AGENT_ENDED),
        (lambda tree: (tree / ".git" / "config").unlink(), Reason.AGENT_ENDED),
    ],
    ids=["name", "pipe", "gone"],
)
def test_the_run_goes_on_after_such_an_agent(
    act: Callable[[Path], None], reason: Reason, tmp_path: Path
) -> None:
    deployment = deployment_of()
    write_deployment(tmp_path, deployment)
    parts = dataclasses.replace(
        parts_of(deployment, {"cheat": []}), make_agent=lambda *_: Acting(act)
    )

    run_controller(tmp_path, parts)

    state = state_of(tmp_path)
    assert state.directions["cheat"].closed.reason is reason
    assert state.finished.outcome == "nothing_promoted"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("objects/info/alternates", "/elsewhere\n"),
        ("commondir", "/elsewhere\n"),
        ("config", "[core]\n\tbare = false\n[Include]\n\tpath = /elsewhere\n"),
        ("config", '[includeIf "gitdir:/"]\n\tpath = /elsewhere\n'),
    ],
)
def test_a_repository_that_reads_elsewhere_is_refused(
    name: str, text: str, systems: SystemRepository, stock: System
) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    write(worktree, b"specengine/new.py")
    commit_all(worktree)
    path = worktree / ".git" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

    with pytest.raises(Refused, match="refers to files outside the repository"):
        systems.collect("d", stock.commit)


def test_an_answer_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet", ".")
    blob = git(tmp_path, "hash-object", "-w", "--stdin", stdin=b"x").stdout.strip().decode()
    lines = "".join(f"100644 blob {blob}\tf{i}\n" for i in range(10))
    tree = git(tmp_path, "mktree", stdin=lines.encode()).stdout.strip().decode()
    for _ in range(9):
        lines = "".join(f"040000 tree {tree}\td{i}\n" for i in range(10))
        tree = git(tmp_path, "mktree", stdin=lines.encode()).stdout.strip().decode()
    monkeypatch.setattr("specpilot.controller.git._LARGEST_ANSWER", 2**16)

    with pytest.raises(GitError, match="answers more than"):
        git(tmp_path, "ls-tree", "-r", tree)


def _nothing(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _endless(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 2**40)


@pytest.mark.parametrize("place", ["config", "HEAD", "index"])
@pytest.mark.parametrize("make", [_nothing, _folder, _circle, _endless])
def test_files_of_git_that_are_not_as_they_were_end_nothing(
    make: Callable[[Path], None], place: str, systems: SystemRepository, stock: System
) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    write(worktree, b"specengine/new.py")
    commit_all(worktree)
    make(worktree / ".git" / place)

    if place != "index" or make is _circle:
        with pytest.raises((Refused, GitError)) as caught:
            systems.collect("d", stock.commit)
        assert "\n" not in str(caught.value)
    again = systems.open_worktree("d", stock.commit)

    assert (again / ".git" / "config").is_file()
    systems.open_worktree("d", stock.commit)


@pytest.mark.parametrize("left", ["nothing", "a file", "a loop", "no repository", "half a clone"])
def test_whatever_is_left_of_a_worktree_is_made_anew(
    left: str, systems: SystemRepository, stock: System
) -> None:
    worktree = systems.open_worktree("d", stock.commit)
    if left == "half a clone":
        (worktree / ".git" / "config").unlink()
        (worktree / ".git" / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
    elif left == "no repository":
        remove(worktree / ".git")
    else:
        remove(worktree)
    if left == "a file":
        worktree.write_bytes(b"")
    if left == "a loop":
        worktree.symlink_to(worktree.name)

    with pytest.raises((Refused, GitError)):
        systems.collect("d", stock.commit)
    again = systems.open_worktree("d", stock.commit)

    assert git(again, "rev-parse", "HEAD").stdout.decode().strip() == stock.commit
    assert os.path.lexists(systems.folder.parent / "unreadable" / "d") is (left != "nothing")


CLOSED = """
import os, pathlib, sys
worktree, stock = pathlib.Path(sys.argv[2], "worktrees", "d"), sys.argv[3]
from specpilot.controller.systems import SystemRepository
from specpilot.core.errors import Refused
systems = SystemRepository(pathlib.Path(sys.argv[2]))
os.environ["HOME"] = sys.argv[2]
os.setgid(65534)
os.setuid(65534)
systems.open_worktree("d", stock)
target = worktree / sys.argv[1]
target.chmod(0)
try:
    systems.collect("d", stock)
except Refused as refusal:
    print(refusal.what)
systems.open_worktree("d", stock)
(worktree / "specengine").chmod(0)
systems.open_worktree("d", stock)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a test user's folders are closed to others")
@pytest.mark.parametrize("place", [".", ".git", ".git/config", ".git/objects"])
def test_what_may_not_be_read_is_refused_and_moved(place: str) -> None:
    """Of an account that rights bind: root reads everything."""
    with tempfile.TemporaryDirectory() as name:
        stock = SystemRepository(Path(name)).commit_stock(SimulatedAdapter().stock_tree())
        subprocess.run(["chown", "-R", "65534:65534", name], check=True)
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, place, name, stock.commit],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == "cannot be read (Permission denied)\n"

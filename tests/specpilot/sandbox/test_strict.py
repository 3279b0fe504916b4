"""Level `strict`: what a process of another account can see and do, and where it is refused."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation
from specpilot.sandbox import accounts
from specpilot.sandbox import probe as probing
from specpilot.sandbox.agent import confine_agent
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.policy import HOME, Bind, Policy, Role, interpreter_binds
from specpilot.sandbox.probe import probe
from specpilot.sandbox.process import start

can_change_uid = pytest.mark.skipif(
    os.geteuid() != 0 or Isolation.NAMESPACES in probe().unavailable,
    reason="needs root and bubblewrap",
)
PROGRAM = """
import json, os, pathlib, socket, sys
OUTSIDE, ROOTS = sys.argv[1], sys.argv[2]
def attempt(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "done"
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
pathlib.Path("made").write_text("x")
print(json.dumps({
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()],
    "capabilities": [int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Amb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "network": attempt(lambda: socket.create_connection(("192.0.2.1", 80), timeout=1)),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "outside": attempt(lambda: os.listdir(OUTSIDE)),
    "of_root": attempt(lambda: open(ROOTS).read()),
    "usr": attempt(lambda: open("/usr/new", "w")),
    "sysctl": attempt(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "first": attempt(lambda: os.kill(1, 9)),
    "become_root": attempt(lambda: os.setuid(0)),
    "home": attempt(lambda: pathlib.Path(os.environ["HOME"], "x").write_text("x")),
    "tmp": attempt(lambda: pathlib.Path("/tmp/x").write_text("x")),
    "shm": attempt(lambda: pathlib.Path("/dev/shm/x").write_text("x")),
}))
"""


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> accounts.Account:
    """An account that every machine has stands for both roles' own."""
    for role in Role:
        monkeypatch.setitem(accounts.ACCOUNT_NAMES, role, "nobody")
    return accounts.account_of(Role.SERVER)


def check_seen(seen: dict[str, object], account: accounts.Account) -> None:
    assert seen["ids"] == [account.uid, account.uid, account.gid, []]
    assert seen["capabilities"] == [0, 0, 0, 0]
    assert seen["no_new_privileges"] == "1"
    assert seen["interfaces"] == ["lo"]
    assert seen["network"] == "OSError"
    assert seen["processes"] in (2, 3)
    assert seen["outside"] == "FileNotFoundError"
    assert seen["of_root"] == seen["first"] == seen["become_root"] == "PermissionError"
    assert seen["usr"] in ("OSError", "PermissionError")
    assert seen["sysctl"] in ("OSError", "PermissionError")
    assert seen["home"] == seen["tmp"] == seen["shm"] == "done"


@can_change_uid
def test_a_strict_server_has_no_right_but_to_its_own(
    nobody: accounts.Account, tmp_path: Path
) -> None:
    """The run lies in a folder that the account cannot even enter, as runs of root do."""
    outside, shown, sockets = (tmp_path / name for name in ("records", "export", "socket"))
    for folder in (outside, shown, sockets):
        folder.mkdir()
    roots = shown / "private"
    roots.write_text("of root alone", encoding="utf-8")
    roots.chmod(0o600)
    policy = Policy(
        role=Role.SERVER,
        read_only=(*interpreter_binds(), Bind(shown)),
        writable=(Bind(sockets, Path("/run/engine")),),
        environment=base_environment(Path(HOME), Path("/tmp")),
        working_folder=Path("/run/engine"),
    )
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(outside), str(roots)]

    async def play() -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await start(policy, command, Isolation.STRICT, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        text = await process.stdout.read()
        assert await process.wait() == 0
        await process.stop()
        return text

    check_seen(json.loads(asyncio.run(play())), nobody)
    assert (sockets / "made").stat().st_uid == nobody.uid


@can_change_uid
def test_a_strict_agent_edits_its_worktree_and_reaches_its_socket(
    nobody: accounts.Account, tmp_path: Path
) -> None:
    worktree, state, outside = (tmp_path / name for name in ("worktree", "state", "records"))
    for folder in (worktree, state, outside):
        folder.mkdir()
    (tmp_path / "roots").write_text("of root alone", encoding="utf-8")
    (tmp_path / "roots").chmod(0o600)
    (state / "link").symlink_to(tmp_path / "roots")
    (state / "way").symlink_to(outside)
    (outside / "journal").touch()
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(tmp_path)
        server.bind("mine.sock")
        os.chdir(here)
        (tmp_path / "mine.sock").chmod(0o600)
        server.listen()
        confined = confine_agent(
            worktree, state, tmp_path / "mine.sock", Isolation.STRICT, hidden=[outside],
            read_only=[tmp_path / "roots"],
        )  # fmt: skip
        connect = "import socket; socket.socket(socket.AF_UNIX).connect('../mine.sock')"
        program = f"{PROGRAM}\n{connect}"
        arguments = ["python", "-c", program, str(outside), str(tmp_path / "roots")]
        done = subprocess.run(
            [*confined.prefix, *arguments],
            env=confined.environment,
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stderr

    check_seen(json.loads(done.stdout), nobody)
    assert (worktree / "made").stat().st_uid == nobody.uid
    for untouched in (tmp_path / "roots", outside, outside / "journal"):
        assert untouched.stat().st_uid == 0


@can_change_uid
def test_strict_starts_whatever_the_umask(nobody: accounts.Account, tmp_path: Path) -> None:
    earlier = os.umask(0o077)
    try:
        worktree, state, sockets = (tmp_path / name for name in ("worktree", "state", "sockets"))
        for folder in (worktree, state, sockets):
            folder.mkdir()
        policy = Policy(
            role=Role.SERVER,
            read_only=(),
            writable=(Bind(sockets, Path("/run/engine")),),
            environment={"PATH": "/usr/bin:/bin"},
            working_folder=Path("/run/engine"),
        )
        agent = confine_agent(worktree, state, sockets, Isolation.STRICT, hidden=[])

        async def play() -> int:
            nothing = asyncio.subprocess.DEVNULL
            command = ["touch", "made"]
            process = await start(policy, command, Isolation.STRICT, stdout=nothing, stderr=nothing)
            return await process.wait()

        assert asyncio.run(play()) == 0
        subprocess.run([*agent.prefix, "touch", "made"], env=agent.environment, check=True)
    finally:
        os.umask(earlier)
    for folder in (worktree, sockets):
        assert (folder / "made").stat().st_uid == nobody.uid


@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        ("root", "only root can start processes under another uid"),
        ("account", "the account specpilot-nobody-has-this does not exist"),
        ("setpriv", "setpriv is not installed"),
    ],
)
def test_a_host_that_lacks_something_is_told_in_one_line(
    lacking: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "specpilot-nobody-has-this" if lacking == "account" else "nobody"
    which = shutil.which
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lacking == "root" else 0)
    monkeypatch.setattr(
        shutil, "which", lambda wanted: None if lacking == wanted else which(wanted)
    )
    for role in Role:
        monkeypatch.setitem(accounts.ACCOUNT_NAMES, role, name)

    with pytest.raises(Refused, match=why) as caught:
        accounts.account_of(Role.SERVER)
    assert "\n" not in str(caught.value)
    if Isolation.NAMESPACES not in probe().unavailable:
        with pytest.raises(Refused, match=why) as caught:
            probe().require(Isolation.STRICT)
        assert "\n" not in str(caught.value)


@can_change_uid
def test_the_probe_starts_a_process_of_each_account(
    nobody: accounts.Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe().strongest is Isolation.STRICT
    fake = accounts.Account("nobody", 2**32 - 1, nobody.gid)
    monkeypatch.setattr(probing, "account_of", lambda role: fake)

    with pytest.raises(Refused, match="nobody does not start"):
        probe().require(Isolation.STRICT)


def test_without_bubblewrap_strict_names_it() -> None:
    with pytest.raises(Refused, match=r"isolation strict: not available here.*bwrap"):
        probe(program="no-such-bwrap").require(Isolation.STRICT)

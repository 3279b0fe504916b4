"""The kernel's keyrings are out of reach of everything confined; all else works."""

import asyncio
import errno
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation
from specpilot.sandbox import accounts, keyrings
from specpilot.sandbox.agent import confine_agent
from specpilot.sandbox.policy import Bind, Policy, Role, interpreter_binds
from specpilot.sandbox.probe import probe
from specpilot.sandbox.process import start

LEVELS = [Isolation.NAMESPACES, Isolation.STRICT]
confined = pytest.mark.skipif(
    Isolation.NAMESPACES in probe().unavailable, reason="bubblewrap does not work on this machine"
)
PROGRAM = """
import ctypes, json, os, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
add, request, control = map(int, sys.argv[1:4])
def code(*call):
    return 0 if libc.syscall(*call) >= 0 else ctypes.get_errno()
number = ctypes.c_long
calls = []
for bit in (0, 0x40000000):
    calls += [code(number(add | bit), b"user", b"mark", b"kept", number(4), number(ring))
              for ring in (-1, -2, -3, -4, -5)]
    calls.append(code(number(request | bit), b"user", b"mark", None, number(-4)))
    calls += [code(number(control | bit), number(22), number(-1), number(-3)),
              code(number(control | bit), number(1), None),
              code(number(control | bit), number(10), number(-4), b"user", b"mark", number(0))]
done = []
thread = threading.Thread(target=lambda: done.append("thread"))
thread.start(); thread.join()
done.append(subprocess.run(["sh", "-c", "echo child"], stdout=subprocess.PIPE).stdout.decode())
open("made", "w").write("x")
print(json.dumps([calls, done]))
"""
KEYS = dict.fromkeys(keyrings.INTERFACES, ("0", "0", "0")) | {
    machine: tuple(map(str, interfaces[0][1]))
    for machine, interfaces in keyrings.INTERFACES.items()
}


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for role in Role:
        monkeypatch.setitem(accounts.ACCOUNT_NAMES, role, "nobody")


def check(text: str | bytes) -> None:
    calls, done = json.loads(text)
    assert set(calls) == {errno.ENOSYS}
    assert done == ["thread", "child\n"]


@confined
@pytest.mark.parametrize("isolation", LEVELS)
def test_a_server_reaches_no_keyring(isolation: Isolation, tmp_path: Path) -> None:
    if isolation is Isolation.STRICT and os.geteuid() != 0:
        pytest.skip("only root can change its uid")
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    policy = Policy(
        role=Role.SERVER,
        read_only=interpreter_binds(),
        writable=(Bind(sockets, Path("/run/engine")),),
        environment={"PATH": "/usr/bin:/bin"},
        working_folder=Path("/run/engine"),
    )
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, *KEYS[platform.machine()]]

    async def play() -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await start(policy, command, isolation, stdout=pipe, stderr=pipe)
        assert process.stdout is not None
        text = await process.stdout.read()
        assert await process.wait() == 0
        await process.stop()
        return text

    check(asyncio.run(play()))


@confined
@pytest.mark.parametrize("isolation", LEVELS)
def test_an_agent_reaches_no_keyring(isolation: Isolation, tmp_path: Path) -> None:
    if isolation is Isolation.STRICT and os.geteuid() != 0:
        pytest.skip("only root can change its uid")
    worktree, state, socket = (tmp_path / name for name in ("worktree", "state", "socket"))
    for folder in (worktree, state, socket):
        folder.mkdir()
    agent = confine_agent(worktree, state, socket, isolation, hidden=[])
    done = subprocess.run(
        [*agent.prefix, sys.executable, "-I", "-S", "-c", PROGRAM, *KEYS[platform.machine()]],
        env=agent.environment,
        capture_output=True,
        check=True,
    )
    check(done.stdout)


@confined
def test_a_machine_whose_numbers_are_unknown_confines_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")

    assert keyrings.main(["bwrap", "--", "true"]) == keyrings.CANNOT_START
    assert "cannot refuse keyrings on vax" in capfd.readouterr().err


@confined
def test_the_probe_says_why_no_filter_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "keyrings.py"
    broken.write_text("import sys\nsys.exit('cannot refuse keyrings on vax')\n", encoding="utf-8")
    monkeypatch.setattr(keyrings, "__file__", str(broken))

    with pytest.raises(Refused, match="cannot refuse keyrings on vax"):
        probe().require(Isolation.NAMESPACES)

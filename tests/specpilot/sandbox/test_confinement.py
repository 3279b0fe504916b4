"""What a confined process sees, and that nothing of it stays behind."""

import asyncio
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import psutil
import pytest

from specpilot.core.errors import Refused, SpecPilotError
from specpilot.core.measurement import Isolation
from specpilot.sandbox import accounts, policy
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.policy import HOME, Bind, Policy, Role, check_policy, interpreter_binds
from specpilot.sandbox.probe import probe
from specpilot.sandbox.process import last_line, start

LEVELS = [Isolation.NONE]
if Isolation.NAMESPACES not in probe().unavailable:
    LEVELS.append(Isolation.NAMESPACES)
confined = pytest.mark.skipif(
    Isolation.NAMESPACES not in LEVELS, reason="bubblewrap does not work on this machine"
)


def make_policy(folder: Path, **changes: object) -> Policy:
    sockets = folder / "sockets"
    sockets.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {
        "role": Role.SERVER,
        "read_only": interpreter_binds(),
        "writable": (Bind(sockets),),
        "environment": base_environment(Path(HOME), Path("/tmp")),
        "working_folder": sockets,
        "shm_bytes": 1 << 20,
    }
    return Policy(**(fields | changes))  # type: ignore[arg-type]


def run_inside(policy: Policy, program: str, isolation: Isolation) -> object:
    async def play() -> object:
        process = await start(
            policy,
            [sys.executable, "-I", "-S", "-c", program],
            isolation,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        text = await process.stdout.read()
        code = await process.wait()
        await process.stop()
        assert code == 0
        return json.loads(text)

    return asyncio.run(play())


@confined
def test_journal_outside_files_network_and_environment_are_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "secret")
    journal = tmp_path / "journal.jsonl"
    journal.write_text("sealed", encoding="utf-8")
    checkout = tmp_path / "exports"
    checkout.mkdir()
    policy = make_policy(tmp_path, read_only=(*interpreter_binds(), Bind(checkout)))
    seen = run_inside(
        policy,
        f"""
import json, os, pathlib, socket
def attempt(action):
    try:
        action()
    except OSError as error:
        return type(error).__name__
    return "done"
def connect():
    socket.create_connection(("192.0.2.1", 80), timeout=1)
print(json.dumps({{
    "journal": attempt(lambda: open({str(journal)!r}).read()),
    "listing": sorted(os.listdir({str(tmp_path)!r})),
    "network": attempt(connect),
    "checkout": attempt(lambda: open({str(checkout / "new")!r}, "w")),
    "beside": attempt(lambda: open("/usr/new", "w")),
    "root": attempt(lambda: open("/new", "w")),
    "devices": attempt(lambda: open("/dev/new", "w")),
    "socket": attempt(lambda: open("allowed", "w")),
    "key": os.environ.get("PROVIDER_KEY"),
    "shm": os.listdir("/dev/shm"), "tmp": os.listdir("/tmp"),
}}))""",
        Isolation.NAMESPACES,
    )
    assert isinstance(seen, dict)
    assert seen["journal"] == "FileNotFoundError"
    assert seen["listing"] == ["exports", "sockets"]
    assert seen["network"] == "OSError"
    assert seen["checkout"] == seen["beside"] == "OSError"
    assert seen["root"] == seen["devices"] == "OSError"
    assert seen["socket"] == "done"
    assert seen["key"] is None
    assert seen["shm"] == []
    assert not {"journal.jsonl"} & set(seen["tmp"])
    assert (tmp_path / "sockets" / "allowed").exists()


@confined
def test_unix_socket_in_a_bound_folder_crosses_the_network_namespace(tmp_path: Path) -> None:
    policy = make_policy(tmp_path)

    async def play() -> bytes:
        program = (
            "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('s')\ns.listen()\n"
            "c, _ = s.accept()\nc.sendall(b'hello')\nc.close()"
        )
        process = await start(
            policy,
            [sys.executable, "-I", "-S", "-c", program],
            Isolation.NAMESPACES,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        path = tmp_path / "sockets" / "s"
        for _ in range(500):
            try:
                reader, _writer = await asyncio.open_unix_connection(str(path))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(0.01)
        text = await reader.read()
        await process.stop()
        return text

    assert asyncio.run(play()) == b"hello"


def test_a_bind_that_shows_a_hidden_path_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "run" / "journal.jsonl"
    journal.parent.mkdir()
    journal.touch()
    link = tmp_path / "link"
    link.symlink_to(journal.parent)
    for source in (tmp_path, journal, link):
        policy = make_policy(tmp_path / "other", read_only=(Bind(source),), hidden=(journal,))
        with pytest.raises(Refused, match="would show"):
            check_policy(policy)


def test_a_missing_path_and_a_server_with_a_network_are_errors(tmp_path: Path) -> None:
    missing = tmp_path / "model"
    with pytest.raises(SpecPilotError, match="model: does not exist"):
        check_policy(make_policy(tmp_path, read_only=(Bind(missing),)))
    with pytest.raises(SpecPilotError, match="nvidia77: does not exist"):
        check_policy(make_policy(tmp_path, device_nodes=(Path("/dev/nvidia77"),)))
    with pytest.raises(Refused, match="network"):
        check_policy(make_policy(tmp_path, network=True))


TREE = """
import os, signal, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if len(sys.argv) > 1 else signal.SIG_DFL)
open("ready", "w").close()
time.sleep(600)
"""


async def start_tree(folder: Path, isolation: Isolation, *arguments: str) -> object:
    process = await start(
        make_policy(folder),
        [sys.executable, "-I", "-S", "-c", TREE, *arguments],
        isolation,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    while not (folder / "sockets" / "ready").exists():
        await asyncio.sleep(0.01)
    return process


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("isolation", LEVELS)
@pytest.mark.parametrize("deaf", [False, True])
def test_stop_ends_daemons_and_processes_that_ignore_sigterm(
    tmp_path: Path, isolation: Isolation, deaf: bool
) -> None:
    async def play() -> list[psutil.Process]:
        process = await start_tree(tmp_path, isolation, *(["deaf"] if deaf else []))
        below = process.descendants()  # type: ignore[attr-defined]
        assert len(below) >= 3
        await process.stop(grace_seconds=0.3)  # type: ignore[attr-defined]
        await process.stop()  # type: ignore[attr-defined]
        return below

    assert survivors(asyncio.run(play())) == []


@pytest.mark.parametrize("isolation", LEVELS)
def test_nothing_survives_when_the_parent_is_killed(tmp_path: Path, isolation: Isolation) -> None:
    parent_program = f"""
import asyncio, importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("confinement", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
async def play():
    await module.start_tree(pathlib.Path({str(tmp_path)!r}), module.Isolation({isolation.value!r}))
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(play())
"""
    parent = subprocess.Popen([sys.executable, "-c", parent_program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert len(below) >= 4
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while survivors(below) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert survivors(below) == []


@pytest.mark.parametrize("isolation", LEVELS)
def test_the_exit_code_and_the_reason_of_a_failed_start_come_back(
    tmp_path: Path, isolation: Isolation
) -> None:
    log = tmp_path / "log"

    async def play(command: list[str]) -> int:
        with log.open("wb") as stream:
            process = await start(
                make_policy(tmp_path), command, isolation, stdout=stream, stderr=stream
            )
        return await process.wait()

    assert asyncio.run(play(["sh", "-c", "exit 7"])) == 7
    assert asyncio.run(play(["no-such-program"])) != 0
    assert "no-such-program" in last_line(log)


def test_strict_is_refused_with_a_reason_where_accounts_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = probe()
    with pytest.raises(Refused, match="isolation strict: not available here"):
        found.require(Isolation.STRICT)


def test_probe_without_bubblewrap_names_the_reason() -> None:
    found = probe(program="no-such-bwrap")
    assert found.strongest is Isolation.NONE
    with pytest.raises(Refused, match="bwrap is not installed"):
        found.require(Isolation.NAMESPACES)


@confined
def test_strict_runs_under_the_account_of_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change its uid")
    monkeypatch.setitem(accounts.ACCOUNT_NAMES, Role.SERVER, "nobody")
    account = accounts.account_of(Role.SERVER)

    async def play(folder: Path) -> tuple[int, set[int]]:
        process = await start(
            make_policy(folder, read_only=()),
            ["sh", "-c", ": > owned; exec sleep 600"],
            Isolation.STRICT,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        owned = folder / "sockets" / "owned"
        for _ in range(300):
            if owned.exists():
                break
            await asyncio.sleep(0.01)
        # bubblewrap itself stays root, which alone reaches everything that is bound.
        command = [below for below in process.descendants() if below.name() == "sleep"]
        uids = {below.uids().real for below in command}
        await process.stop()
        return owned.stat().st_uid, uids

    with tempfile.TemporaryDirectory() as name:
        # Folders of pytest are closed to other accounts.
        Path(name).chmod(0o755)
        assert asyncio.run(play(Path(name))) == (account.uid, {account.uid})


@confined
@pytest.mark.parametrize("cover", [policy.without_judge, policy.without_prompts])
def test_a_package_inside_the_environment_is_covered_however_it_is_reached(
    cover: Callable[[Path], tuple[Bind, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, linked = tmp_path / "real", tmp_path / "env"
    prompts = real / "site" / "specpilot" / "workload" / "prompts"
    prompts.mkdir(parents=True)
    (prompts / "gsm8k.jsonl").write_text("sealed", encoding="utf-8")
    linked.symlink_to(real)

    def found(name: str) -> ModuleSpec:
        return ModuleSpec(name, None, origin=str(linked / "site" / name.replace(".", "/") / "x.py"))

    monkeypatch.setattr(policy.importlib.util, "find_spec", found)
    binds = (*interpreter_binds(), Bind(real), Bind(linked), *cover(tmp_path / "state"))
    program = f"""
import json, pathlib
places = map(pathlib.Path, {[str(real), str(linked)]!r})
print(json.dumps([[str(f) for f in place.rglob("*.jsonl")] for place in places]))"""

    seen = run_inside(make_policy(tmp_path, read_only=binds), program, Isolation.NAMESPACES)

    assert seen == [[], []]


REMEMBERING = """
import ctypes, json, os, pathlib
MARK = b"specpilot-mark"
libc = ctypes.CDLL(None)
found, places = [], 0
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if name != "proc"]
    found += [f"{folder}/{name}" for name in files if name.encode() == MARK]
    try:
        pathlib.Path(folder, MARK.decode()).write_bytes(b"kept")
        places += 1
    except OSError:
        pass
ADD, CTL, SEARCH = KEYS
RINGS = (-1, -2, -3, -4, -5)  # of the thread, process, session, user, and user's session
found += [f"keyring {r}" for r in RINGS if libc.syscall(CTL, SEARCH, r, b"user", MARK, 0) >= 0]
for ring in RINGS:
    libc.syscall(ADD, b"user", MARK, b"kept", 4, ring)
print(json.dumps([found, places]))
"""


@confined
def test_nothing_that_a_process_leaves_is_there_for_the_next(tmp_path: Path) -> None:
    """Every folder that lets itself be written, and every keyring; the socket folder is new."""
    add, control = {"x86_64": (248, 250)}.get(platform.machine(), (217, 219))
    program = REMEMBERING.replace("KEYS", str((add, control, 10)))
    # As a login does: without a session keyring of its own, a process has none to hand on.
    ctypes.CDLL(None).syscall(control, 1, None)

    seen = [
        run_inside(make_policy(tmp_path / str(turn)), program, Isolation.NAMESPACES)
        for turn in range(2)
    ]

    for found, places in seen:
        assert found == []
        assert places > 3


@pytest.mark.parametrize("isolation", LEVELS)
def test_no_file_of_a_server_grows_without_end(tmp_path: Path, isolation: Isolation) -> None:
    program = """
import errno, json, os
number = os.open("large", os.O_CREAT | os.O_WRONLY)
try:
    os.truncate(number, (1 << 30) + 1)
except OSError as error:
    print(json.dumps(errno.errorcode[error.errno]))
"""
    assert run_inside(make_policy(tmp_path), program, isolation) == "EFBIG"

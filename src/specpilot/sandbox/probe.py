"""Finds out which isolation levels this machine gives, by starting confined processes.

Nothing is concluded from versions or settings: a small program runs inside and reports what it
could see and do.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from specpilot.core.errors import Refused
from specpilot.core.measurement import Isolation
from specpilot.sandbox.accounts import account_of
from specpilot.sandbox.environment import base_environment
from specpilot.sandbox.foreign import one_line
from specpilot.sandbox.policy import (
    HOME,
    Bind,
    Policy,
    Role,
    bwrap_arguments,
    interpreter_binds,
)

PROGRAM = """
import json, os, pathlib, socket
secret, shown = pathlib.Path(os.environ["SECRET"]), pathlib.Path(os.environ["SHOWN"])
def writes(path):
    try:
        path.write_text("x")
    except OSError:
        return False
    return True
print(json.dumps({
    "interfaces": [name for _, name in socket.if_nameindex()],
    "environment": sorted(os.environ),
    "processes": sum(entry.name.isdigit() for entry in pathlib.Path("/proc").iterdir()),
    "sees_secret": secret.exists(),
    "writes_read_only": writes(shown / "new"),
}))
"""
TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Check:
    """One property of confinement and whether it holds here; `detail` says why it does not."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What this machine gives.

    Attributes:
        checks: each property tested.
        unavailable: for every level that is not available, why; in one line.
    """

    checks: tuple[Check, ...]
    unavailable: dict[Isolation, str]

    @property
    def strongest(self) -> Isolation:
        """The strongest level that is available."""
        levels = (Isolation.STRICT, Isolation.NAMESPACES, Isolation.NONE)
        return next(level for level in levels if level not in self.unavailable)

    def require(self, level: Isolation) -> None:
        """Refuse a level that this machine does not give.

        Raises:
            Refused: with the reason and what to do.
        """
        if level in self.unavailable:
            raise Refused(
                f"not available here: {self.unavailable[level]}",
                where=f"isolation {level.value}",
                fix="install bubblewrap and allow user namespaces, or choose a weaker level by "
                "platform.isolation in the deployment",
            )


def probe(program: str = "bwrap") -> Probe:
    """Run the probe program confined, and judge what it reports."""
    unavailable: dict[Isolation, str] = {}
    checks = _namespace_checks(program)
    failed = next((check for check in checks if not check.holds), None)
    if failed is not None:
        unavailable[Isolation.NAMESPACES] = f"{failed.name}: {failed.detail}"
        unavailable[Isolation.STRICT] = unavailable[Isolation.NAMESPACES]
        return Probe(checks=checks, unavailable=unavailable)
    accounts = _account_check(program)
    if not accounts.holds:
        unavailable[Isolation.STRICT] = accounts.detail
    return Probe(checks=(*checks, accounts), unavailable=unavailable)


def _namespace_checks(program: str) -> tuple[Check, ...]:
    if shutil.which(program) is None:
        return (Check("bubblewrap starts", holds=False, detail="bwrap is not installed"),)
    with tempfile.TemporaryDirectory(prefix="specpilot-probe-") as folder:
        secret, shown = Path(folder, "secret"), Path(folder, "shown")
        secret.write_text("hidden", encoding="utf-8")
        shown.mkdir()
        environment = base_environment(Path(HOME), Path("/tmp"))
        policy = Policy(
            role=Role.SERVER,
            read_only=(*interpreter_binds(), Bind(shown)),
            writable=(),
            environment=environment | {"SECRET": str(secret), "SHOWN": str(shown)},
            working_folder=Path("/"),
            shm_bytes=1 << 20,
        )
        command = (sys.executable, "-I", "-S", "-c", PROGRAM)
        try:
            done = subprocess.run(
                bwrap_arguments(policy, command, program=program),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                env={"PATH": os.environ.get("PATH", os.defpath), "SPECPILOT_LEAK": "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return (Check("bubblewrap starts", holds=False, detail="it does not end"),)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {done.returncode}"
        return (Check("bubblewrap starts", holds=False, detail=reason),)
    return _judge(json.loads(done.stdout), {*environment, "SECRET", "SHOWN"})


def _judge(report: dict[str, object], allowed: set[str]) -> tuple[Check, ...]:
    interfaces, names = report["interfaces"], report["environment"]
    assert isinstance(interfaces, list)
    assert isinstance(names, list)
    # PWD is set by bubblewrap itself, LC_CTYPE by the interpreter.
    leaked = set(names) - allowed - {"PWD", "LC_CTYPE"}
    facts = (
        ("no network", set(interfaces) <= {"lo"}, f"interfaces {interfaces}"),
        ("clean environment", not leaked, f"inherited {sorted(leaked)}"),
        ("own process table", report["processes"] in (1, 2, 3), "host processes are visible"),
        ("hidden files", report["sees_secret"] is False, "an unbound file is visible"),
        ("read-only files", report["writes_read_only"] is False, "a read-only bind was written"),
    )
    found = tuple(Check(name, holds, "" if holds else detail) for name, holds, detail in facts)
    return (Check("bubblewrap starts", holds=True, detail=""), *found)


def _account_check(program: str) -> Check:
    name = "separate uids"
    for role in Role:
        try:
            account = account_of(role)
        except Refused as refusal:
            return Check(name, holds=False, detail=f"{refusal.what}; {refusal.fix}")
        policy = Policy(
            role=role, read_only=(), writable=(), environment={}, working_folder=Path("/")
        )
        command = bwrap_arguments(
            policy, ("id", "-u"), program=program, identity=(account.uid, account.gid)
        )
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS,
            check=False, text=True,
        )  # fmt: skip
        if done.stdout.strip() != str(account.uid):
            reason = one_line(done.stderr or f"it runs as {done.stdout}")
            return Check(name, holds=False, detail=f"{account.name} does not start ({reason})")
    return Check(name, holds=True, detail="")

"""Run folders: making one, finding its controller."""

import fcntl
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from specpilot.core.deployment import Deployment, parse_deployment
from specpilot.core.errors import Refused, SpecPilotError, of_system

RUNS = Path("runs")
DEPLOYMENT_FILE = "deployment.toml"
JOURNAL_FILE = "journal.jsonl"


def create_run(deployment: Deployment, folder: Path) -> None:
    """Make a run folder with the locked deployment; local paths become absolute.

    Raises:
        Refused: the folder holds a run already.
        SpecPilotError: it cannot be written.
    """
    require_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecPilotError(
            f"cannot be made ({error.strerror})", where=str(folder), fix="choose another --run"
        ) from error
    write_deployment(with_absolute_paths(deployment), folder / DEPLOYMENT_FILE)


def require_free(folder: Path) -> None:
    """Check that no run would be overwritten.

    Raises:
        Refused: the folder holds a run already.
    """
    if has_begun(folder):
        raise Refused(
            "holds a run already",
            where=str(folder),
            fix=f"continue with 'specpilot resume {folder}', or give another --run",
        )
    if is_being_written(folder):
        raise Refused("holds a run that is starting", where=str(folder), fix="give another --run")


def has_begun(folder: Path) -> bool:
    """Whether the folder holds a run: a journal with at least one whole line.

    A run that failed before its first event has done nothing, so its name is free.
    """
    journal = folder / JOURNAL_FILE
    if not journal.is_file():
        return False
    with journal.open("rb") as stream:
        return stream.readline().endswith(b"\n")


def is_being_written(folder: Path) -> bool:
    """Whether a controller holds the journal, its first line written or not."""
    journal = folder / JOURNAL_FILE
    if not journal.is_file():
        return False
    with journal.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_tree(folder: Path) -> None:
    """Remove a folder; exported systems in it are read-only."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(stat.S_IRWXU)
    shutil.rmtree(folder)


def write_deployment(deployment: Deployment, path: Path) -> None:
    """Write a deployment as TOML; keys without a value are left out.

    Raises:
        SpecPilotError: it cannot be written; what was there before is untouched.
    """
    partial = path.with_name(f".{path.name}.partial")
    text = tomli_w.dumps(deployment.model_dump(mode="json", exclude_none=True))
    try:
        partial.write_text(text, "utf-8")
        # A full disk must not leave half a file in place of a whole one.
        partial.replace(path)
    except OSError as error:
        raise of_system(error, where=str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def with_absolute_paths(deployment: Deployment) -> Deployment:
    """The deployment with every local path absolute, so that a resume may start anywhere."""
    table = deployment.model_dump(mode="json", exclude_none=True)
    for part, key in (("target", "model"), ("drafter", "model"), ("agent", "script")):
        value = table[part].get(key)
        if value is not None and Path(value).expanduser().exists():
            table[part][key] = str(Path(value).expanduser().absolute())
    benchmarks = table["workload"]["benchmarks"]
    if isinstance(benchmarks, dict):
        for name, source in benchmarks.items():
            if Path(source).expanduser().is_file():
                benchmarks[name] = str(Path(source).expanduser().absolute())
    return parse_deployment(table, where="deployment")


def require_run(folder: Path) -> Path:
    """The journal of a run folder.

    Raises:
        SpecPilotError: the folder holds no run, or one that did nothing yet.
    """
    journal = folder / JOURNAL_FILE
    if not has_begun(folder):
        raise SpecPilotError(
            "holds no run", where=str(folder), fix="start one with 'specpilot optimize'"
        )
    return journal


def controller_process(folder: Path) -> psutil.Process | None:
    """The live controller of a run, by the process id in its journal; None when there is none."""
    pid = None
    if not has_begun(folder):
        return None
    for line in (folder / JOURNAL_FILE).read_text("utf-8", errors="replace").splitlines():
        if '"controller_started"' in line:
            found = _last_pid(line)
            pid = found if found is not None else pid
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        ours = "specpilot.controller" in process.cmdline()
        alive = process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return process if ours and alive else None


def _last_pid(line: str) -> int | None:
    """The process of a line; None where it names none, because it is damaged or of another kind."""
    try:
        entry: dict[str, Any] = json.loads(line)
        pid = entry["data"]["pid"] if entry["kind"] == "controller_started" else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return pid if isinstance(pid, int) and 0 < pid < 1 << 31 else None

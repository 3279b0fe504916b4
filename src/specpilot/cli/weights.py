"""`specpilot weights …`: the engine's lossless formats, run as a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from specpilot.cli.console import console
from specpilot.cli.output import Finished, is_terminal, number, print_json, say

AsJson = Annotated[bool, typer.Option("--json", help="as JSON")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="when absent, all processors but one, 6 at most")
]
PLAIN_LINES = 10
"""Lines of progress where nobody watches a bar."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)


def build_app() -> typer.Typer:
    """The sub-commands."""
    app = typer.Typer(no_args_is_help=True, help="Lossless weight formats on checkpoints.")
    app.command("encode")(encode)
    app.command("verify")(verify)
    app.command("inspect")(inspect)
    return app


def encode(
    source: Annotated[Path, typer.Argument(help="checkpoint folder with safetensors")],
    destination: Annotated[Path, typer.Argument(help="folder to write, or to finish")],
    form: Annotated[
        str, typer.Option("--format", help="w12, w12n (with the nested view) or w11s")
    ] = "w12",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Encode a checkpoint; an interrupted run is continued by the same command."""
    arguments = ["encode", str(source), str(destination), "--format", form]
    result = _run(arguments, threads, "encode", quiet=as_json)
    if as_json:
        print_json(result)
        return
    saved = 1 - result["stored_bytes"] / result["original_bytes"]
    say(
        f"{destination}: {result['stored_bytes'] / 1e9:.3f} GB, {saved:.1%} smaller; "
        f"packed tensors take {number(result['packed_bits_per_weight'], '.3f')} bits per weight"
    )


def verify(
    folder: Annotated[Path, typer.Argument(help="encoded folder")],
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Hash every stored byte, decode every tensor and compare it with the original's hash."""
    result = _run(["verify", str(folder)], threads, "verify", quiet=as_json)
    if as_json:
        print_json(result)
    else:
        for fault in result["faults"]:
            say(f"damaged: {fault['where']} {fault['what']}")
        if not result["faults"]:
            say(f"{folder}: every tensor decodes to the original, bit for bit")
    raise Finished(1 if result["faults"] else 0)


def inspect(
    folder: Annotated[Path, typer.Argument(help="encoded folder")], as_json: AsJson = False
) -> None:
    """Show how many bits each weight takes, tensor by tensor, and why."""
    result = _run(["inspect", str(folder)], None, "inspect", quiet=True)
    if as_json:
        print_json(result)
        return
    table = Table()
    for name in ("tensor", "shape", "format", "bits", "why"):
        table.add_column(name, overflow="fold")
    for row in result["tensors"]:
        shape = " x ".join(str(size) for size in row["shape"])
        bits = number(row["bits_per_weight"], ".3f")
        table.add_row(row["name"], shape, row["format"], bits, row["why"])
    console(160).print(table)
    say(
        f"packed tensors: {number(result['packed_bits_per_weight'], '.4f')} bits per weight; "
        f"folder: {result['stored_bytes'] / 1e9:.3f} of {result['original_bytes'] / 1e9:.3f} GB"
    )


def _run(arguments: list[str], threads: int | None, title: str, *, quiet: bool) -> dict[str, Any]:
    """Run the engine's command and follow its lines; returns its result.

    An interrupt is handed to the engine, which leaves its folder so that it can go on.
    """
    command = [sys.executable, "-P", "-m", "specengine.weights", *arguments]
    if threads is not None:
        command += ["--threads", str(threads)]
    with _Interrupts() as interrupts:
        ends, code = _ends_of(command, interrupts, _progress(title, quiet=quiet))
    if "result" in ends:
        result: dict[str, Any] = ends["result"]
        return result
    if interrupts.received:
        after = "; the same command continues" if title == "encode" else ""
        say(f"interrupted{after}", err=True)
        raise Finished(128 + interrupts.received[0])
    message = ends["error"]["message"] if "error" in ends else _unexplained(code)
    say(f"error: {message}", err=True)
    raise Finished(1)


def _ends_of(
    command: list[str], interrupts: "_Interrupts", progress: AbstractContextManager[Any]
) -> tuple[dict[str, Any], int]:
    """The engine's last lines by event, and its exit code."""
    # A group of its own: a terminal's interrupt must not reach the engine while it still starts.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, encoding="utf-8", errors="replace", process_group=0
    ) as process:
        interrupts.hand_to(process)
        try:
            with progress as step:
                ends = _follow(process, step)
        finally:
            # Where showing progress failed, the engine must not go on unseen; else it has ended.
            if process.stdout is not None:
                process.stdout.close()
            process.wait()
    return ends, process.returncode


def _follow(process: "subprocess.Popen[str]", step: Any) -> dict[str, Any]:
    """Show progress until the engine's last line; its result or error by name."""
    assert process.stdout is not None
    ends: dict[str, Any] = {}
    for line in process.stdout:
        if not line.endswith("\n"):
            break  # a killed engine leaves half a line
        event = json.loads(line)
        if event["event"] == "tensor":
            step(event["tensor"], event["done_bytes"], event["total_bytes"])
        else:
            ends[event.pop("event")] = event
    return ends


class _Interrupts:
    """Asks the engine to end when we are asked to, and makes it when asked twice.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "_Interrupts":
        self._before = {one: signal.signal(one, self._receive) for one in _STOPPING}
        return self

    def __exit__(self, *failure: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def hand_to(self, process: "subprocess.Popen[str]") -> None:
        """Name the engine's process, which may be started after the first signal."""
        self._process = process
        if self.received:
            process.terminate()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM if len(self.received) == 1 else signal.SIGKILL)


def _unexplained(code: int) -> str:
    """What to say of an engine that ended without a word of its own."""
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            how += ", as happens when memory is full"
    else:
        how = f"ended with code {code} and no result"
    return f"the engine's process {how}; repeat the same command"


@contextmanager
def _progress(title: str, *, quiet: bool) -> Iterator[Any]:
    """A bar on a terminal, a few lines elsewhere, nothing where JSON is asked for."""
    if quiet:
        yield lambda tensor, done, total: None
    elif is_terminal():
        columns = (TextColumn(title), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.description}")) as bar:
            task = bar.add_task("", total=None)
            yield lambda tensor, done, total: bar.update(
                task, completed=done, total=total, description=tensor
            )
    else:
        yield _Lines(title)


class _Lines:
    """One line for each tenth of the bytes."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._shown = 0

    def __call__(self, tensor: str, done: int, total: int) -> None:
        tenth = PLAIN_LINES * done // total if total else PLAIN_LINES
        if tenth > self._shown:
            self._shown = tenth
            say(f"{self.title}: {done / total:.0%} ({tensor})")

"""`specpilot serve DEPLOYMENT`: stock or a promoted system as an OpenAI-compatible server."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.output import say
from specpilot.cli.runs import JOURNAL_FILE, RUNS, has_begun, remove_tree
from specpilot.core.deployment import Deployment, load_deployment
from specpilot.core.errors import Refused
from specpilot.core.system import Checkout


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    system: Annotated[
        str | None,
        typer.Option(
            help="stock, best, or a commit or tree hash of the run; the best if there is one"
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="run folder; runs/NAME when absent")] = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free port")] = 8000,
    autoregressive: Annotated[bool, typer.Option("--autoregressive", help="no drafter")] = False,
) -> None:
    """Serve until interrupted: what the run promoted, or stock, and say which."""
    chosen = load_deployment(deployment)
    if chosen.engine.kind != "embedded":
        raise Refused("cannot be served", where=f"engine {chosen.engine.kind}", fix="use embedded")
    folder = run or RUNS / chosen.name
    name, why = choose_system(folder, system)
    if why:
        say(f"serving {name}: {why}", err=True)
    checkout = (
        find_checkout(folder, name)
        if has_begun(folder) or name != "stock"
        else installed_stock(chosen, folder_of_this_process())
    )
    environment = {**os.environ, "PYTHONPATH": str(checkout.path.absolute())}
    arguments = server_arguments(chosen, checkout, autoregressive=autoregressive)
    address = ["--host", host, "--port", str(port)]
    os.execve(sys.executable, [*arguments, *address], environment)


def choose_system(run: Path, asked: str | None) -> tuple[str, str]:
    """Which system of a run to serve, and why; stock is never passed off as the best.

    The reason is empty where the user named the system.

    Raises:
        Refused: the best was asked for, and nothing was promoted.
    """
    if asked not in (None, "best"):
        return str(asked), ""
    if not has_begun(run):
        if asked is not None:
            raise Refused(
                "holds no run, so there is no best system",
                where=str(run),
                fix="run 'specpilot optimize', or serve --system stock",
            )
        return "stock", f"no run in {run}"
    from specpilot.controller.journal import read_journal
    from specpilot.loop.plan import confirmed
    from specpilot.loop.state import fold

    state = fold(read_journal(run / JOURNAL_FILE).events())
    if state.best is None or state.stock is None or state.best == state.stock.system:
        if asked is not None:
            raise Refused(
                "promoted nothing, so there is no best system",
                where=str(run),
                fix="serve --system stock, or go on with 'specpilot resume'",
            )
        return "stock", f"{run} promoted nothing"
    proof = "confirmed by a sealed final" if confirmed(state) else "promoted, not confirmed"
    return "best", f"tree {state.best.tree_hash[:12]} of {run}, {proof}"


def server_arguments(
    deployment: Deployment, checkout: Checkout, *, autoregressive: bool
) -> list[str]:
    """The server's command line, without its address."""
    from specpilot.engines.target_folder import model_folder

    drafting = (
        ["--autoregressive"]
        if autoregressive
        else ["--drafter", str(model_folder(deployment.drafter.model)),
              "--drafter-kind", deployment.drafter.kind]
    )  # fmt: skip
    threads = deployment.engine.threads
    return [
        sys.executable, "-P", "-m", "specengine.server",
        "--target", str(model_folder(deployment.target.model)), *drafting,
        "--system", str(checkout.path.absolute() / "system.toml"),
        "--dtype", deployment.target.dtype,
        "--device", deployment.platform.devices[0],
        "--slots", str(max(deployment.regime.concurrency)),
        "--tree-hash", checkout.system.tree_hash,
        *(["--threads", str(threads)] if threads else []),
    ]  # fmt: skip


def installed_stock(deployment: Deployment, folder: Path) -> Checkout:
    """The installed engine with the deployment's options, exported below `folder`."""
    from specpilot.controller.systems import SystemRepository
    from specpilot.engines.stock_tree import read_stock_tree

    fresh = SystemRepository(folder)
    return fresh.export(fresh.commit_stock(read_stock_tree(deployment.engine.options)))


def folder_of_this_process() -> Path:
    """A temporary folder that goes when this process ends, whatever program it became by then.

    The end of a process is the one thing that an exec, a signal and a crash have in common: a child
    waits for the pipe that only this process holds open, then removes the folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="specpilot-stock-"))
    waiting, held = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            os.close(held)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(nowhere, stream)
            os.read(waiting, 1)
            remove_tree(folder)
        finally:
            os._exit(0)
    os.close(waiting)
    os.set_inheritable(held, True)
    return folder


def find_checkout(run: Path, name: str) -> Checkout:
    """A read-only folder with the files of a run's system.

    Raises:
        Refused: the run has no such system.
    """
    from specpilot.controller.git import GitError
    from specpilot.controller.journal import read_journal
    from specpilot.controller.systems import SystemRepository
    from specpilot.loop.state import fold

    state = fold(read_journal(run / "journal.jsonl").events())
    if state.stock is None:
        raise Refused(
            f"has no system '{name}'", where=str(run), fix="serve --system stock, or optimize"
        )
    systems = SystemRepository(run)
    if name in ("stock", "best"):
        return systems.export(state.stock.system if name == "stock" else state.best or
                              state.stock.system)  # fmt: skip
    known = {state.stock.system.tree_hash: state.stock.system}
    for attempt in state.attempts():
        known[attempt.started.system.tree_hash] = attempt.started.system
    for tree, found in known.items():
        if len(name) >= 7 and (tree.startswith(name) or found.commit.startswith(name)):
            return systems.export(found)
    try:
        return systems.export(systems.system(name))
    except GitError as error:
        raise Refused(
            f"has no system '{name}'", where=str(run), fix="see 'specpilot status RUN --json'"
        ) from error

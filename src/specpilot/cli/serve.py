"""`specpilot serve DEPLOYMENT`: stock or a promoted system as an OpenAI-compatible server."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from specpilot.cli.runs import RUNS
from specpilot.core.deployment import Deployment, load_deployment
from specpilot.core.errors import Refused
from specpilot.core.system import Checkout


def command(
    deployment: Annotated[Path, typer.Argument(help="deployment file")],
    system: Annotated[
        str, typer.Option(help="stock, best, or a commit or tree hash of the run")
    ] = "best",
    run: Annotated[Path | None, typer.Option(help="run folder; runs/NAME when absent")] = None,
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free port")] = 8000,
    autoregressive: Annotated[bool, typer.Option("--autoregressive", help="no drafter")] = False,
) -> None:
    """Serve until interrupted. 'best' is the run's promoted system; 'stock' needs no run."""
    chosen = load_deployment(deployment)
    if chosen.engine.kind != "embedded":
        raise Refused("cannot be served", where=f"engine {chosen.engine.kind}", fix="use embedded")
    checkout = find_checkout(chosen, run or RUNS / chosen.name, system)
    environment = {**os.environ, "PYTHONPATH": str(checkout.path.absolute())}
    arguments = server_arguments(chosen, checkout, autoregressive=autoregressive)
    address = ["--host", host, "--port", str(port)]
    os.execve(sys.executable, [*arguments, *address], environment)


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


def find_checkout(deployment: Deployment, run: Path, name: str) -> Checkout:
    """A read-only folder with the system's files.

    Raises:
        Refused: the run has no such system.
    """
    from specpilot.controller.git import GitError
    from specpilot.controller.journal import read_journal
    from specpilot.controller.systems import SystemRepository
    from specpilot.engines.stock_tree import read_stock_tree
    from specpilot.loop.state import fold

    state = fold(read_journal(run / "journal.jsonl").events())
    if state.stock is None:
        if name != "stock":
            raise Refused(
                f"has no system '{name}'", where=str(run), fix="serve --system stock, or optimize"
            )
        fresh = SystemRepository(Path(tempfile.mkdtemp(prefix="specpilot-stock-")))
        return fresh.export(fresh.commit_stock(read_stock_tree(deployment.engine.options)))
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

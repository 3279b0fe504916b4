"""`specpilot force RUN`: token forcing of a system, or of outputs that any server produced."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot.cli.claim import claimed
from specpilot.cli.load import note_load
from specpilot.cli.output import Finished, print_json, say
from specpilot.cli.runs import DEPLOYMENT_FILE, controller_process, require_run
from specpilot.core.deployment import load_deployment
from specpilot.core.errors import DamagedRun, ExitCode, Refused, SpecPilotError

if TYPE_CHECKING:
    from specpilot.forcing.rules import ForcingResult


def command(
    run: Annotated[Path, typer.Argument(help="run folder whose phase 0 is done")],
    outputs: Annotated[
        Path | None, typer.Option(help="JSON lines of prompt and output token ids")
    ] = None,
    system: Annotated[str, typer.Option(help="stock, best, or a commit or tree hash")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="every number as JSON")] = False,
) -> None:
    """Score outputs on stock with an FP32 head and judge them by the forcing rules."""
    require_run(run)
    alive = controller_process(run)
    if alive is not None:
        raise Refused(
            f"uses the devices, process {alive.pid}",
            where=str(run),
            fix="wait for the run's end, or stop it",
        )
    with claimed(run):
        note_load(load_deployment(run / DEPLOYMENT_FILE))
        result = asyncio.run(force_run(run, outputs, system))
    if as_json:
        print_json(result.to_json())
    else:
        say(f"{result.detail} of {result.outputs} outputs; 2δ = {2 * result.delta_nats:g} nats")
    raise Finished(ExitCode.OK if result.accepted else ExitCode.REFUSED)


async def force_run(run: Path, outputs: Path | None, system: str) -> "ForcingResult":
    """Start stock, score, judge.

    Raises:
        SpecPilotError: phase 0 is not done, the outputs are malformed, or a request failed.
    """
    from specpilot.cli.serve import find_checkout
    from specpilot.controller.journal import read_journal
    from specpilot.controller.outcomes import require_answers
    from specpilot.controller.servers import Arena, serving
    from specpilot.controller.systems import SystemRepository
    from specpilot.engines.embedded import EmbeddedAdapter
    from specpilot.forcing.outputs import outputs_of, read_outputs
    from specpilot.forcing.reference import StockReference
    from specpilot.forcing.run import force_outputs
    from specpilot.loop.state import fold
    from specpilot.workload.split import load_split

    deployment = load_deployment(run / DEPLOYMENT_FILE)
    if deployment.engine.kind != "embedded":
        raise Refused(
            "has no model that could score outputs",
            where=f"engine {deployment.engine.kind}",
            fix="force a run of the embedded engine",
        )
    state = fold(read_journal(run / "journal.jsonl").events())
    if state.stock is None or state.stock_facts is None:
        raise SpecPilotError(
            "has no measurement of stock yet", where=str(run), fix="finish phase 0 first"
        )
    reference = StockReference.model_validate(
        _record(run, state.stock_facts.record.path, state.stock_facts.record.sha256)["reference"]
    )
    adapter = EmbeddedAdapter(deployment, run)
    device = deployment.platform.devices[0]
    arena = Arena(adapter, (device,), deployment.platform.isolation)
    development = load_split(run / "sealed" / "split.json").development
    if outputs is not None:
        forced = read_outputs(outputs, adapter.vocabulary.size)
    else:
        checkout = find_checkout(run, system)
        async with serving(arena, checkout, development) as server:
            played = [await server.generate(request) for request in development]
        require_answers(
            played, where=f"system {system}", fix="look at the server's log in the run folder"
        )
        forced = outputs_of(development, played)
    stock = SystemRepository(run).export(state.stock.system)
    async with serving(arena, stock, development) as scorer:
        return await force_outputs(scorer, forced, reference, stop_ids=adapter.stop_ids)


def _record(run: Path, relative: str, digest: str) -> dict[str, object]:
    import json

    from specpilot.core.record import file_hash

    path = run / relative
    if not path.is_file() or file_hash(path) != digest:
        raise DamagedRun(
            "is missing or is not the file that the journal names",
            where=str(path),
            fix="restore it from a copy of the run folder",
        )
    found: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return found

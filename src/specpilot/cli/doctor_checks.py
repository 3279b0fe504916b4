"""The single checks of `specpilot doctor`. Each tries the real thing; none concludes from names."""

import asyncio
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from aiohttp import web

from specpilot.cli.doctor_finding import Finding
from specpilot.cli.load import advice, measure_load
from specpilot.cli.models import require_models
from specpilot.cli.runs import RUNS
from specpilot.controller.systems import SystemRepository
from specpilot.controller.trees import tree_hash_of_folder
from specpilot.core.deployment import Deployment
from specpilot.core.measurement import Isolation
from specpilot.core.requests import FinishReason, Request
from specpilot.engines.client import EngineClient
from specpilot.engines.stock_tree import read_stock_tree
from specpilot.engines.target_folder import Vocabulary, model_folder, read_vocabulary
from specpilot.sandbox.devices import device_state
from specpilot.sandbox.probe import probe
from specpilot.workload.loading import load_requests

NEEDED_BYTES = 2 << 30
"""Exports, recordings and records of a run."""
OVERHEAD_REQUESTS = 50
ALLOWED_OVERHEAD_SECONDS = 0.01
"""Per request; more than this would show in rates of short outputs."""


def programs(deployment: Deployment) -> list[Finding]:
    """Programs that a run calls."""
    found = shutil.which("git")
    return [Finding("git", found is not None, found or "not found", "install git")]


def isolation(deployment: Deployment) -> list[Finding]:
    """The isolation level that the deployment asks for, by starting confined processes."""
    wanted = deployment.platform.isolation
    if wanted is Isolation.NONE:
        return [
            Finding(
                "isolation",
                holds=False,
                detail="'none': the sealed final will not confirm any result",
                fix="set platform.isolation = 'namespaces'",
            )
        ]
    reason = probe().unavailable.get(wanted)
    fix = "install bubblewrap and allow user namespaces, or choose a weaker level"
    detail = f"'{wanted}' works here" if reason is None else f"'{wanted}': {reason}"
    return [Finding("isolation", reason is None, detail, fix)]


def devices(deployment: Deployment) -> list[Finding]:
    """Every device answers."""
    found = []
    for name in deployment.platform.devices:
        state = device_state(name)
        throttled = ", ".join(state.throttle_reasons)
        detail = f"throttled: {throttled}" if throttled else state.uuid
        fix = "wait until it is cool and idle"
        found.append(Finding(f"device {name}", not throttled, detail, fix))
    return found


def idle_cores(deployment: Deployment) -> list[Finding]:
    """Nothing else runs on the cores that a CPU deployment measures on.

    Threads of one product wait for each other by spinning, so that work of others on one core slows
    every product down, many times where two threads come to share a core.
    """
    if "cpu" not in deployment.platform.devices:
        return []
    load = measure_load()
    return [Finding("idle cores", not load.disturbs, load.spell(), advice(load, deployment))]


def disk(deployment: Deployment) -> list[Finding]:
    """Room for a run folder where runs are written."""
    folder = RUNS if RUNS.exists() else Path()
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free in {folder.absolute()}"
    return [Finding("disk", free >= NEEDED_BYTES, detail, "free 2 GiB, or use --run elsewhere")]


def models(deployment: Deployment) -> list[Finding]:
    """Target and drafter are here, with weights, and belong together."""
    if deployment.engine.kind == "simulated":
        return [Finding("models", holds=True, detail="simulated")]
    found = [
        Finding(item.role, holds=True, detail=item.spell()) for item in require_models(deployment)
    ]
    vocabulary = read_vocabulary(model_folder(deployment.target.model))
    ends = len(vocabulary.stop_ids)
    detail = f"{vocabulary.size} tokens, {ends} stop tokens"
    fix = "add eos_token_id to generation_config.json"
    return [*found, Finding("vocabulary", ends > 0, detail, fix)]


def requests(deployment: Deployment) -> list[Finding]:
    """Benchmarks can be read, split and tokenized."""
    if deployment.engine.kind == "simulated":
        return [Finding("requests", holds=True, detail="simulated")]
    split = load_requests(deployment, model_folder(deployment.target.model))
    longest = max(len(request.prompt_token_ids) for request in split.development)
    detail = (
        f"{len(split.development)} development, {len(split.sealed)} sealed, longest prompt "
        f"{longest} tokens"
    )
    return [Finding("requests", holds=True, detail=detail)]


def agent(deployment: Deployment) -> list[Finding]:
    """The agent's program is on the path, and money has a limit."""
    choice = deployment.agent
    if choice.kind != "command":
        return [Finding("agent", holds=True, detail=f"{choice.kind} (built in)")]
    program = choice.preset or choice.command[0]
    where = shutil.which(program)
    limit = deployment.budget.max_usd
    return [
        Finding("agent", where is not None, where or f"{program} not found", f"install {program}"),
        Finding(
            "money",
            limit is not None,
            "no limit" if limit is None else f"at most {limit:g} USD",
            "set budget.max_usd",
        ),
    ]


def stock_identity(deployment: Deployment) -> list[Finding]:
    """Stock, committed and exported, is byte for byte the installed engine."""
    if deployment.engine.kind == "simulated":
        return [Finding("stock identity", holds=True, detail="simulated")]
    files = read_stock_tree(deployment.engine.options)
    with tempfile.TemporaryDirectory(prefix="specpilot-doctor-") as folder:
        systems = SystemRepository(Path(folder))
        checkout = systems.export(systems.commit_stock(files))
        same = all((checkout.path / name).read_bytes() == data for name, data in files.items())
        exact = same and tree_hash_of_folder(checkout.path) == checkout.system.tree_hash
        # Exports are read-only; the temporary folder has to go.
        for path in [checkout.path, *checkout.path.rglob("*")]:
            path.chmod(0o700)
    detail = f"tree {checkout.system.tree_hash[:12]}, {len(files)} files"
    return [Finding("stock identity", exact, detail, "install the distribution again")]


def client_overhead(deployment: Deployment) -> list[Finding]:
    """Time that the judge's own client adds to a request, against a server that answers at once."""
    seconds = asyncio.run(_client_seconds())
    detail = f"{1000 * seconds:.2f} ms per request"
    fix = "stop other work on this machine"
    return [Finding("client overhead", seconds <= ALLOWED_OVERHEAD_SECONDS, detail, fix)]


async def _client_seconds() -> float:
    """Median over requests of the client's whole time, with an instant answer of 8 tokens."""
    ids = list(range(8))
    usage = {"prompt_tokens": 2, "completion_tokens": len(ids), "total_tokens": len(ids) + 2}
    choice = {"index": 0, "text": "", "finish_reason": "length", "token_ids": ids}
    answer = {"id": "x", "object": "text_completion", "created": 0, "model": "m"}

    async def complete(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer | {"choices": [choice], "usage": usage}, dumps=json.dumps)

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    played = Request(id="x/0", benchmark="x", prompt_token_ids=(1, 2), max_new_tokens=len(ids))
    try:
        with tempfile.TemporaryDirectory(prefix="specpilot-") as folder:
            path = Path(folder) / "stub.sock"
            await web.UnixSite(runner, str(path)).start()
            async with EngineClient(path, Vocabulary(100, frozenset({99})), stream=False) as client:
                outcomes = [await client.generate(played) for _ in range(OVERHEAD_REQUESTS)]
    finally:
        await runner.cleanup()
    failed = [item for item in outcomes if item.finish_reason is FinishReason.FAILED]
    if failed:
        raise ValueError(f"the stub's answer was refused: {failed[0].error}")
    return statistics.median(item.seconds for item in outcomes)

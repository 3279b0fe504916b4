"""A real server of a tiny random model, started, verified, forced and ended by the adapter."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tiny_engine import STRONGEST, VOCABULARY, export, make_deployment, make_request

import specpilot
from specpilot.core.errors import DeploymentError, EngineFailure, SpecPilotError
from specpilot.core.measurement import Isolation
from specpilot.core.requests import FinishReason
from specpilot.core.system import Checkout, System
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.embedded_server import check_health
from specpilot.engines.stock_tree import read_stock_tree
from specpilot.forcing.outputs import ForcedOutput, outputs_of
from specpilot.forcing.rules import ForcingReason
from specpilot.forcing.run import force_outputs, measure_reference

JUDGE = Path(str(specpilot.__file__)).parent


@pytest.fixture(scope="module")
def stock() -> dict[str, bytes]:
    return read_stock_tree({})


def with_faults(output: ForcedOutput) -> ForcedOutput:
    """Every seventh token is another one, as from a biased head."""
    ids = tuple(
        3 + (token + 11) % (VOCABULARY - 3) if place % 7 == 6 else token
        for place, token in enumerate(output.output_token_ids)
    )
    return output.model_copy(update={"output_token_ids": ids})


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_server_serves_scores_and_leaves_nothing_behind(
    tmp_path: Path, model: Path, stock: dict[str, bytes]
) -> None:
    run = tmp_path / "run"
    checkout = export(stock, run / "exports" / "tree")
    (run / "journal.jsonl").touch()
    adapter = EmbeddedAdapter(make_deployment(model, STRONGEST), run)

    async def play() -> None:
        server = await adapter.launch(checkout, "cpu")
        below = server._process.descendants()
        try:
            assert (await server.counters()).steps == 0
            requests = [make_request(index) for index in range(4)]
            outcomes = [await server.generate(request) for request in requests]
            assert {o.finish_reason for o in outcomes} <= {FinishReason.STOP, FinishReason.LENGTH}
            counters = await server.counters()
            assert counters.emitted_tokens == sum(len(o.output_token_ids) - 1 for o in outcomes)
            # Greedy decoding in float32 is what its own scorer says, the stop token included.
            outputs = outputs_of(requests, outcomes)
            stops = adapter.vocabulary.stop_ids
            reference = await measure_reference(server, outputs, outputs)
            result = await force_outputs(server, outputs, reference, stop_ids=stops)
            assert result.accepted, result.detail
            assert (result.mismatches, reference.departures) == (0, 0)
            lossy = [with_faults(output) for output in outputs]
            faulty = await force_outputs(server, lossy, reference, stop_ids=stops)
            assert ForcingReason.RATE in faulty.reasons
            cut = {"output_token_ids": outputs[0].output_token_ids[:-3]}
            early = [outputs[0].model_copy(update=cut), *outputs[1:]]
            ended = await force_outputs(server, early, reference, stop_ids=stops)
            assert ForcingReason.EARLY_END in ended.reasons
            pieces = await server.score(requests[0].prompt_token_ids, (5, 6, 7), 4)
            assert [s.token for s in pieces] == [5, 6, 7]
            await server.flush()
            assert (await server.counters()).emitted_tokens == 0
        finally:
            await server.stop()
        await server.stop()
        assert below
        assert survivors(below) == []
        assert server.log.exists()

    asyncio.run(play())
    assert list((run / "control").iterdir()) == []
    assert not list((run / "exports").rglob("__pycache__"))


def test_a_server_sees_nothing_of_the_judge(tmp_path: Path, model: Path) -> None:
    """Wherever the package lies, its folder is covered by an empty one."""
    adapter = EmbeddedAdapter(make_deployment(model, STRONGEST), tmp_path)
    checkout = export({"system.toml": b""}, tmp_path / "exports" / "tree")
    folders = adapter._make_folders(checkout)

    policy = adapter._policy(checkout, "cpu", folders, 1)

    covers = [bind.source for bind in policy.read_only if bind.inside == JUDGE]
    assert covers
    assert all(list(cover.iterdir()) == [] for cover in covers)


@pytest.mark.parametrize("isolation", sorted({Isolation.NONE, STRONGEST}))
def test_a_failed_start_brings_the_servers_last_line(
    tmp_path: Path, model: Path, stock: dict[str, bytes], isolation: Isolation
) -> None:
    broken = dict(stock) | {"specengine/server/__main__.py": b"raise SystemExit('out of tea')"}
    checkout = export(broken, tmp_path / "run" / "exports" / "broken")
    adapter = EmbeddedAdapter(make_deployment(model, isolation), tmp_path / "run")
    with pytest.raises(EngineFailure, match="ended with code 1 before it was ready: out of tea"):
        asyncio.run(adapter.launch(checkout, "cpu"))
    assert list((tmp_path / "run" / "control").iterdir()) == []


def test_a_server_that_never_gets_ready_is_ended_at_the_deadline(
    tmp_path: Path, model: Path, stock: dict[str, bytes]
) -> None:
    program = b"import time\nprint('brewing', flush=True)\ntime.sleep(600)"
    slow = dict(stock) | {"specengine/server/__main__.py": program}
    checkout = export(slow, tmp_path / "run" / "exports" / "slow")
    deployment = make_deployment(model, STRONGEST)
    adapter = EmbeddedAdapter(deployment, tmp_path / "run", start_deadline_seconds=0.5)
    with pytest.raises(EngineFailure, match=r"not ready within .*last line: brewing"):
        asyncio.run(adapter.launch(checkout, "cpu"))
    assert psutil.Process().children(recursive=True) == []


def test_nothing_of_a_server_survives_when_the_judge_is_killed(
    tmp_path: Path, model: Path, stock: dict[str, bytes]
) -> None:
    slow = dict(stock) | {
        "specengine/server/__main__.py": b"import time\nopen('up', 'w').close()\ntime.sleep(600)"
    }
    run = tmp_path / "run"
    checkout = export(slow, run / "exports" / "slow")
    deployment = make_deployment(model, STRONGEST)
    program = f"""
import asyncio, pathlib
from specpilot.core.deployment import Deployment
from specpilot.core.system import Checkout
from specpilot.engines.embedded import EmbeddedAdapter
deployment = Deployment.model_validate_json({deployment.model_dump_json()!r})
checkout = Checkout.model_validate_json({checkout.model_dump_json()!r})
adapter = EmbeddedAdapter(deployment, pathlib.Path({str(run)!r}))
asyncio.run(adapter.launch(checkout, "cpu"))
"""
    judge = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 120
    while not list(run.glob("control/*/socket/up")) and time.monotonic() < deadline:
        time.sleep(0.02)
    below = psutil.Process(judge.pid).children(recursive=True)
    assert len(below) >= 2
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    while survivors(below) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert survivors(below) == []


def make_checkout(path: Path) -> Checkout:
    system = System(commit="0" * 40, tree_hash="a" * 40, options={"nodes": 8, "tree": "chain"})
    return Checkout(system=system, path=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"tree_hash": None}, "serves tree hash None"),
        ({"tree_hash": "b" * 40}, "serves tree hash"),
        ({"autoregressive": True}, "serves arm True"),
        ({"options": {"nodes": 9, "tree": "chain"}}, "serves option nodes 9, asked for 8"),
        ({"options": {"tree": "chain"}}, "serves option nodes None"),
        ({"options": None}, "serves option nodes None"),
        ({"package": "/usr/lib/specengine"}, "outside its checkout"),
        ({"package": "checkout-2"}, "outside its checkout"),
    ],
)
def test_health_is_held_against_the_checkout(
    tmp_path: Path, change: dict[str, object], message: str | None
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    health = {
        "status": "ready",
        "tree_hash": "a" * 40,
        "package": str(tmp_path / "checkout" / "specengine"),
        "options": {"nodes": 8, "tree": "chain", "other": 1},
        "autoregressive": False,
    } | change
    if health["package"] == "checkout-2":
        health["package"] = str(tmp_path / "checkout-2" / "specengine")
    if message is None:
        check_health(health, checkout)
        return
    with pytest.raises(EngineFailure, match=message):
        check_health(health, checkout)


def test_the_stock_tree_holds_the_package_and_every_option_apart(stock: dict[str, bytes]) -> None:
    assert "specengine/server/__main__.py" in stock
    assert not any("__pycache__" in name or name.startswith("specpilot") for name in stock)
    blocks = stock["system.toml"].decode().split("\n\n\n")
    assert len(blocks) >= 5
    for block in blocks:
        comment, option = block.strip().split("\n")
        assert comment.startswith("# ")
        assert " = " in option
    with pytest.raises(DeploymentError, match=r"engine\.options: not accepted .*treee"):
        read_stock_tree({"treee": "chain"})


def test_the_stock_tree_takes_a_parameter_file_with_it(tmp_path: Path) -> None:
    fitted = tmp_path / "sequoia.json"
    fitted.write_text('{"tree": "sequoia", "acceptance": [[0.5, 0.25]]}', encoding="utf-8")
    found = read_stock_tree({"tree": "sequoia", "tree_file": str(fitted)})
    assert found["specengine/fitted_tree.json"] == fitted.read_bytes()
    assert 'tree_file = "specengine/fitted_tree.json"' in found["system.toml"].decode()
    fitted.write_text('{"tree": "sequoia"}', encoding="utf-8")
    with pytest.raises(DeploymentError, match="no field 'acceptance'"):
        read_stock_tree({"tree": "sequoia", "tree_file": str(fitted)})


def test_identity_follows_the_bytes_on_the_disk(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    adapter = EmbeddedAdapter(make_deployment(folder, Isolation.NONE), tmp_path / "run")
    before = asyncio.run(adapter.identity())
    assert asyncio.run(adapter.identity()) == before
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    after = asyncio.run(adapter.identity())
    assert after.tokenizer_hash != before.tokenizer_hash
    assert after.model_hash != before.model_hash
    (folder / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SpecPilotError, match=r"config\.json: holds no vocab_size"):
        EmbeddedAdapter(make_deployment(folder, Isolation.NONE), tmp_path / "run")

"""Phase 0: what there is, how noisy it is, what it emits, and where it loses speed."""

import time

from specpilot.controller import evidence
from specpilot.controller.outcomes import outcomes_of, require_answers
from specpilot.controller.pairing import interleaved, paired
from specpilot.core.measurement import Measurement
from specpilot.loop.events import (
    NoiseMeasured,
    Noticed,
    StockCharacterised,
    StockCommitted,
    WorkloadSplit,
)
from specpilot.loop.run import Run
from specpilot.stats.gain import noise_band, paired_gain
from specpilot.workload.split import counts, store_split

_USELESS_TAU = 1.05
"""Below this, drafting costs more than it gives on every machine."""


def commit_stock(run: Run) -> None:
    """The engine as installed becomes the first commit."""
    run.emit(StockCommitted(system=run.systems.commit_stock(run.parts.adapter.stock_tree())))


def split_workload(run: Run) -> None:
    """Divide the requests for good and store both sides; nothing later reads the sources again."""
    split = run.parts.load_requests(run.secret)
    store_split(split, run.split_path)
    run.emit(
        WorkloadSplit(
            development=counts(split.development),
            sealed=counts(split.sealed),
            development_hash=split.development_hash,
            sealed_hash=split.sealed_hash,
        )
    )


async def measure_noise(run: Run) -> None:
    """Stock against stock, before anything is compared with it."""
    devices = run.leases.pick(run.pair_devices)
    async with run.leases.hold(devices, "phase0", "noise band"):
        started = time.monotonic()
        stock = run.systems.export(run.stock)
        async with paired(
            run.arena(devices),
            "noise",
            stock,
            stock,
            run.development,
            seed=run.order_seed("noise"),
        ) as (played, _):
            pass
        seconds = (time.monotonic() - started) * len(devices)
    for arm in (played.baseline, played.candidate):
        _require_answers(arm)
    gain = paired_gain(played)
    run.emit(
        NoiseMeasured(
            noise=noise_band(gain),
            gain=gain,
            baseline=evidence.speed(played.baseline),
            record=run.save("noise", played.to_json()),
            device_seconds=seconds,
        )
    )


async def characterise_stock(run: Run) -> None:
    """Stock against AR: rates, first departures, delta; and stock's own mismatches."""
    devices = run.leases.pick(1)
    async with run.leases.hold(devices, "phase0", "stock against AR"):
        started = time.monotonic()
        arms = {
            "ar": run.systems.export(run.stock, autoregressive=True),
            "stock": run.systems.export(run.stock),
        }
        async with interleaved(
            run.arena(devices),
            arms,
            run.development,
            seed=run.order_seed("stock"),
            trusted=frozenset(arms),
        ) as (played, turns):
            for arm in played.values():
                _require_answers(arm)
            async with turns.of("stock") as scorer:
                reference = await evidence.measure_stock(run, scorer, played)
        seconds = time.monotonic() - started
    speed = evidence.speed(played["stock"])
    # Before what ends this part of the run: a crash in between says it twice rather than never.
    _note_useless_drafter(run, speed.tau)
    run.emit(
        StockCharacterised(
            autoregressive=evidence.speed(played["ar"]),
            autoregressive_seconds=evidence.seconds_per_token(outcomes_of(played["ar"])),
            stock=speed,
            delta_nats=reference.delta_nats,
            departures=reference.departures,
            forcing=evidence.stock_forcing_facts(reference),
            record=run.save(
                "stock",
                {
                    "reference": reference.to_json(),
                    "arms": {name: arm.to_json() for name, arm in played.items()},
                },
            ),
            device_seconds=seconds,
        )
    )


def _note_useless_drafter(run: Run, tau: float) -> None:
    # 0 where nothing was drafted: outputs of one token come out of the prefill.
    if not 0 < tau < _USELESS_TAU:
        return
    run.emit(
        Noticed(
            message=f"WARNING: the drafter is hardly ever right, stock emits {tau:.2f} "
            "tokens a step; check that it was trained for this target and its chat template"
        )
    )


def _require_answers(arm: Measurement) -> None:
    require_answers(
        outcomes_of(arm),
        where="stock in phase 0",
        fix="correct the deployment; 'specpilot doctor' checks it",
    )

"""What commits may not repeat: a run's requests, the prompts that ship, and recorded answers."""

from collections.abc import Iterator

from specpilot.controller.contamination import Exchange, Fingerprints, fingerprints
from specpilot.core.measurement import Measurement, PairedRun
from specpilot.loop.events import RecordRef
from specpilot.loop.run import Run
from specpilot.workload.benchmarks import prompts_of
from specpilot.workload.sources import BUILTIN, read_builtin


def known_to(run: Run) -> Fingerprints:
    """Fingerprints of everything that this run asked and was answered; made again when it grows.

    Raises:
        DamagedRun: a record is not what the journal says.
    """
    records = _records(run)
    made_of = (records, run.best.tree_hash)
    if run.known is None or run.known[0] != made_of:
        folders = {run.systems.export(system).path for system in (run.stock, run.best)}
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        held = [path.read_bytes() for path in files]
        answers = [exchange for record in records for exchange in _answers(run, record)]
        made = fingerprints([*_prompts(run), answers], held)
        run.known = (made_of, made)
    return run.known[1]


def _records(run: Run) -> tuple[RecordRef, ...]:
    noise = run.state.noise
    found = [] if noise is None else [noise.record]
    finals = [item.final.record for item in run.state.rounds if item.final is not None]
    return (*found, *(record for record in finals if record is not None))


def _prompts(run: Run) -> Iterator[list[Exchange]]:
    """Of every benchmark: its requests, and all prompts that ship where these are of them."""
    named: dict[str, list[Exchange]] = {}
    for request in (*run.development, *run.sealed):
        ids = request.prompt_token_ids
        named.setdefault(request.benchmark, []).append(Exchange(run.parts.decode(ids), ids))
    yield from named.values()
    chosen = run.deployment.workload.benchmarks
    for benchmark, source in chosen.items() if isinstance(chosen, dict) else ():
        if source == BUILTIN:
            prompts = prompts_of(benchmark, read_builtin(benchmark), BUILTIN)
            yield [Exchange(prompt.text, ()) for prompt in prompts]


def _answers(run: Run, record: RecordRef) -> Iterator[Exchange]:
    """Of stock: a candidate's own could be chosen to forbid what others write."""
    arm: Measurement = PairedRun.model_validate(run.load(record)).baseline
    for outcome in arm.passes[0]:
        ids = outcome.output_token_ids
        yield Exchange(run.parts.decode(ids), ids)

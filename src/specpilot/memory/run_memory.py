"""Memory as a run sees it: entries that fit its deployment, and new ones from its promotions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot.agents.base import MemoryOffer
from specpilot.controller.git import GitError
from specpilot.controller.timing import changed_options
from specpilot.core.deployment import Deployment
from specpilot.core.errors import Refused
from specpilot.core.system import System
from specpilot.loop.events import Promoted
from specpilot.loop.run import Run
from specpilot.loop.state import Direction
from specpilot.memory.admission import admit, verify_entry
from specpilot.memory.entry import Entry, StoredEntry
from specpilot.memory.registry import Registry


class RunMemory:
    """Implements `specpilot.loop.run.Memory` over a registry."""

    def __init__(self, registry: Registry, deployment: Deployment) -> None:
        self._registry = registry
        self._engine = deployment.engine.kind
        self._device_kind = "cpu" if deployment.platform.devices[0] == "cpu" else "cuda"

    def offers(self, options: Mapping[str, object]) -> tuple[MemoryOffer, ...]:
        """One entry per mechanism that fits engine and device and is not applied yet."""
        best: dict[str, StoredEntry] = {}
        for entry_id in self._registry.ids():
            stored = self._registry.get(entry_id)
            if not self._fits(stored.entry, options):
                continue
            rival = best.get(stored.entry.name)
            if rival is None or _point(stored) > _point(rival):
                best[stored.entry.name] = stored
        return tuple(
            MemoryOffer(
                name=name,
                summary=stored.entry.summary,
                options=stored.entry.options,
                folder=str(self._registry.path(stored.id).absolute()),
            )
            for name, stored in sorted(best.items())
        )

    def admit(self, run: Run, direction: str) -> tuple[str, bool, str]:
        """Turn one promotion into an entry; what it was built on comes first.

        Returns:
            Entry id (the mechanism's name when refused), whether it reproduces its source system
            exactly, and one line of detail.
        """
        item = run.state.directions[direction]
        stock = _files(run.systems.export(run.stock).path)
        required: list[str] = []
        try:
            for link in lineage(run, item):
                stored = self._known(run, link, tuple(required)) or make_entry(
                    run, link, tuple(required)
                )
                verify_entry(self._registry, stored, stock)
                admit(self._registry, stored, stock)
                required.append(stored.id)
        except (Refused, GitError) as error:
            return item.plan.mechanism, False, str(error)
        detail = "reproduces its source system byte for byte"
        if item.plan.memory_entry is not None:
            detail += f"; reused from {item.plan.memory_entry}, not a discovery"
        return required[-1], True, detail

    def _fits(self, entry: Entry, options: Mapping[str, object]) -> bool:
        known = entry.options.keys() <= options.keys()
        applied = all(options.get(name) == value for name, value in entry.options.items())
        here = entry.engine == self._engine and entry.device_kind == self._device_kind
        return here and known and not applied

    def _known(self, run: Run, item: Direction, requires: tuple[str, ...]) -> StoredEntry | None:
        """An entry that says the same already: equal systems are not entered twice."""
        promoted = _promotion(item)
        for entry_id in self._registry.ids():
            entry = self._registry.get(entry_id).entry
            same = (entry.name, entry.requires, entry.source_tree, entry.stock_tree)
            if same == (
                item.plan.mechanism,
                requires,
                promoted.system.tree_hash,
                run.stock.tree_hash,
            ):
                return self._registry.get(entry_id)
        return None


def lineage(run: Run, item: Direction) -> tuple[Direction, ...]:
    """Promoted directions from stock up to this one, in the order of promotion.

    Raises:
        Refused: the promotion does not lead back to stock.
    """
    by_system = {
        found.promoted.system.commit: found
        for found in run.state.directions.values()
        if found.promoted is not None
    }
    chain = [item]
    while (base := _promotion(chain[0]).baseline) != run.stock:
        if base.commit not in by_system:
            raise Refused(
                f"builds on {base.commit[:12]}, which no promotion made",
                where=f"direction {chain[0].plan.id}",
                fix="report the run folder; its journal is inconsistent",
            )
        chain.insert(0, by_system[base.commit])
    return tuple(chain)


def make_entry(run: Run, item: Direction, requires: tuple[str, ...]) -> StoredEntry:
    """The entry of a promoted direction, from recorded facts only."""
    promoted = _promotion(item)
    changed = changed_options(promoted.baseline, promoted.system)
    deployment = run.deployment
    device = deployment.platform.devices[0]
    others = [attempt for attempt in item.attempts.values() if attempt.judged is not None]
    tried = {
        judged.system.tree_hash: judged
        for judged in (attempt.judged for attempt in others)
        if judged is not None and judged.system != promoted.system
    }
    entry = Entry(
        name=item.plan.mechanism,
        summary=f"{item.plan.name}: {item.plan.idea}",
        requires=requires,
        options=changed,
        variants=tuple(changed_options(j.baseline, j.system) for j in tried.values()),
        correctness=(
            "An exact pass over the target's weights decides every accepted token; token forcing "
            "accepted the outputs of the timed run and of the sealed final."
        ),
        limits=(
            f"measured on {device} with {deployment.target.model} and {deployment.drafter.model}",
            *(f"{_spell(promoted.baseline, j.system)}: {j.verdict.detail}" for j in tried.values()),
        ),
        untested=(
            f"batch sizes other than {', '.join(map(str, deployment.regime.concurrency))}",
            f"outputs longer than {deployment.workload.sealed_max_new_tokens} tokens",
            "other targets, drafters and devices",
        ),
        engine=deployment.engine.kind,
        device_kind="cpu" if device == "cpu" else "cuda",
        stock_tree=run.stock.tree_hash,
        source_tree=promoted.system.tree_hash,
    )
    delta = run.systems.patch(promoted.baseline.commit, promoted.system.commit)
    return StoredEntry(entry=entry, delta=delta, evidence=_evidence(run, item, promoted))


def _evidence(run: Run, item: Direction, promoted: Promoted) -> dict[str, Any]:
    final = run.state.rounds[item.round - 1].final
    attempts = [
        {
            "attempt": attempt.judged.attempt,
            "verdict": attempt.judged.verdict.to_json(),
            "forcing": attempt.judged.forcing.to_json() if attempt.judged.forcing else None,
            "record": attempt.judged.record.to_json() if attempt.judged.record else None,
        }
        for attempt in item.attempts.values()
        if attempt.judged is not None
    ]
    return {
        "deployment": run.deployment.name,
        "deployment_hash": run.state.started.deployment_hash if run.state.started else None,
        "identity": run.state.started.identity.to_json() if run.state.started else None,
        "noise": run.noise,
        "gain": promoted.gain.to_json(),
        "attempts": attempts,
        "final": final.to_json() if final is not None else None,
        "reused_from": item.plan.memory_entry,
    }


def _promotion(item: Direction) -> Promoted:
    if item.promoted is None:
        raise ValueError(f"direction {item.plan.id} was not promoted")
    return item.promoted


def _point(stored: StoredEntry) -> float:
    return float(stored.evidence.get("gain", {}).get("overall", {}).get("point", 0.0))


def _spell(before: System, after: System) -> str:
    changed = changed_options(before, after)
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "code only"


def _files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

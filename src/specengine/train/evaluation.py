"""Evaluation in the decoding loop: the engine records, and its steps are replayed.

The engine drafts at every position of its own greedy output. From these lattices any tree's steps
follow exactly: start at the first output token, accept what the output agrees with, go on behind
the bonus token. Emitted tokens per step (tau) count the bonus.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.decoding.recorder import RecordedOutput
from specengine.drafters import load_drafter
from specengine.lattice import Lattice
from specengine.models import load_target
from specengine.train.answers import Report, encode_texts
from specengine.trees.draft_tree import DraftTree
from specengine.trees.registry import build

KEYS = (
    "chain/P: greedy chain of P drafted positions; best_first/P/N: best-first tree of N rows (root "
    "included) over P positions; oracle/P: every candidate that is right is accepted; live/P/N: "
    "best_first/P/N as the engine decoded it; accuracy, recall: by drafted position, share of true "
    "tokens that are the first candidate, that are among all candidates"
)


@dataclass(slots=True)
class Tally:
    """Sums over answers; `table` turns them into rates."""

    steps: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    seen: NDArray[np.int64] | None = None
    first: NDArray[np.int64] | None = None
    held: NDArray[np.int64] | None = None

    def table(self) -> dict[str, object]:
        """Rates, and empty lists where nothing was recorded."""
        if self.seen is None or self.first is None or self.held is None:
            return {"tokens": 0, "tau": {}, "accuracy": [], "recall": []}
        count = np.maximum(self.seen, 1)
        return {
            "tokens": self.tokens,
            "tau": {name: round(self.tokens / n, 4) for name, n in self.steps.items()},
            "accuracy": [round(float(x), 4) for x in self.first / count],
            "recall": [round(float(x), 4) for x in self.held / count],
        }


def evaluate(
    target: Path, drafter: Path, prompts: list[dict[str, str]], device: str, report: Report,
    *, max_new_tokens: int, widths: tuple[int, ...], nodes: tuple[int, ...],
    recording: Path | None = None,
) -> dict[str, object]:  # fmt: skip
    """Table per kind of prompt: tau of chain, trees and oracle, accuracy and recall by position.

    Args:
        target: Transformers folder.
        drafter: folder of a drafter of any kind.
        prompts: rows of `kind` and `prompt`.
        device: where to run.
        report: takes a line per kind.
        max_new_tokens: of each answer.
        widths: drafted positions; none stands for the trained block.
        nodes: rows of the trees.
        recording: where to keep what was recorded, as `specpilot replay` reads it.
    """
    engine, tokenizer = load_engine(target, drafter, device)
    widths = widths or (engine.drafter.trained_positions,)
    width, rows = max(widths), max(nodes)
    tables: dict[str, object] = {}
    kept: dict[str, NDArray] = {}
    for kind in sorted({row["kind"] for row in prompts}):
        texts = [row["prompt"] for row in prompts if row["kind"] == kind]
        encoded = encode_texts(tokenizer, texts, engine.target.max_positions - max_new_tokens)
        live, total = engine.variant(tree="best_first", positions=width, nodes=rows), Tally()
        for place, prompt in enumerate(encoded):
            recorded = live.record(prompt, max_new_tokens, width)
            tally(total, recorded, widths, nodes)
            if recording is not None:
                kept |= _entry(len(kept) // 4, f"{kind}/{place}", recorded)
        result = {"requests": len(encoded), **total.table()}
        if live.counters.steps:
            tau = live.counters.emitted_tokens / live.counters.steps
            result["tau"] |= {f"live/{width}/{rows}": round(tau, 4)}
        tables[kind] = result
        report(f"{kind}: {json.dumps(result)}")
    if recording is not None:
        with recording.open("wb") as handle:
            np.savez_compressed(handle, **kept)
    return {
        "keys": KEYS,
        "drafter": engine.drafter.kind,
        "dtype": str(engine.target.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "max_new_tokens": max_new_tokens,
        "benchmarks": tables,
        "mean_tau": _means([table["tau"] for table in tables.values()]),
    }


def load_engine(target: Path, drafter: Path, device: str) -> tuple[Engine, object]:
    """An engine over a drafter of any kind, and the target's tokenizer."""
    from transformers import AutoTokenizer

    model = load_target(target, device=device)
    speculator = load_drafter("auto", drafter, model)
    model.taps = speculator.taps
    tokenizer = AutoTokenizer.from_pretrained(target, local_files_only=True)
    return Engine(model, speculator, EngineOptions()), tokenizer


def _entry(index: int, name: str, recorded: RecordedOutput) -> dict[str, NDArray]:
    """One request of a recording's file."""
    parts = {"tokens": recorded.tokens, "ids": recorded.ids, "edge": recorded.edge}
    return {f"{index}.request_id": np.array(name)} | {
        f"{index}.{part}": value for part, value in parts.items()
    }


def _means(taus: list[dict[str, float]]) -> dict[str, float]:
    """Means over the kinds of prompt that have any."""
    filled = [tau for tau in taus if tau]
    names = filled[0] if filled else {}
    return {name: round(sum(tau[name] for tau in filled) / len(filled), 4) for name in names}


def replay(recorded: RecordedOutput, tree: str, positions: int, nodes: int) -> int:
    """Steps that decoding this answer takes; the first token comes from the prefill."""
    place, steps = 0, 0
    while place < len(recorded.tokens) - 1:
        lattice = Lattice(recorded.ids[place, :positions], recorded.edge[place, :positions])
        draft = build(tree, lattice, int(recorded.tokens[place]), nodes)
        place += _accepted(draft, recorded.tokens[place + 1 :]) + 1
        steps += 1
    return steps


def oracle(recorded: RecordedOutput, positions: int) -> int:
    """Steps if every token that is a candidate were accepted."""
    place, steps = 0, 0
    while place < len(recorded.tokens) - 1:
        ahead = recorded.tokens[place + 1 : place + 1 + positions]
        held = (recorded.ids[place, : len(ahead)] == ahead[:, None]).any(-1)
        place += int(np.cumprod(held).sum()) + 1
        steps += 1
    return steps


def _accepted(draft: DraftTree, answer: NDArray[np.int64]) -> int:
    children = {
        (int(parent), int(token)): node
        for node, (parent, token) in enumerate(zip(draft.parent, draft.tokens, strict=True))
    }
    node, count = 0, 0
    for token in answer.tolist():
        child = children.get((node, token))
        if child is None:
            break
        node, count = child, count + 1
    return count


def tally(
    total: Tally, recorded: RecordedOutput, widths: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    """Add one answer: chain, best-first trees of each size and oracle, per drafted positions."""
    if len(recorded.tokens) < 2:
        return
    total.tokens += len(recorded.tokens) - 1
    names: dict[str, int] = {}
    for width in widths:
        names[f"chain/{width}"] = replay(recorded, "chain", width, width + 1)
        for size in nodes:
            names[f"best_first/{width}/{size}"] = replay(recorded, "best_first", width, size)
        names[f"oracle/{width}"] = oracle(recorded, width)
    for name, steps in names.items():
        total.steps[name] = total.steps.get(name, 0) + steps
    depth = recorded.ids.shape[1]
    ahead = np.arange(len(recorded.ids))[:, None] + 1 + np.arange(depth)
    inside = ahead < len(recorded.tokens)
    labels = recorded.tokens[np.minimum(ahead, len(recorded.tokens) - 1)]
    hit = (recorded.ids == labels[..., None]) & inside[..., None]
    for name, value in (("seen", inside), ("first", hit[..., 0]), ("held", hit.any(-1))):
        old = getattr(total, name)
        setattr(total, name, value.sum(0) if old is None else old + value.sum(0))

"""What a drafter's own lattice is worth: DSpark's candidates and Markov head, EAGLE-3's own tree.

For DSpark one pass per position gives three lattices: candidates after the bias (`biased`), before
it (`unary`), and the unary alone, which ignores the token before (`marginal`). All three are
replayed on the same greedy answers. An EAGLE-3 drafter's own tree is decoded live beside best-first
trees on its lattice.

    python benchmarks/drafters.py --drafter DIR --prompts FILE --out FILE [--device cuda:0]
    python benchmarks/drafters.py --merge FILES... [--json NAME]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from facts import write

from specengine.decoding.engine import Engine
from specengine.decoding.recorder import RecordedOutput
from specengine.drafters.dflash import DFlashDrafter
from specengine.drafters.dspark import DSparkDrafter
from specengine.drafters.eagle3 import Eagle3Drafter
from specengine.lattice import Lattice
from specengine.train.answers import encode_texts, read_prompts
from specengine.train.evaluation import load_engine, oracle, replay

ROOT = Path(__file__).resolve().parents[1]
NODES = (8, 16, 32, 63)
_DRAWS = 2000


class Probe(DSparkDrafter):
    """The stock DSpark drafter, which notes what the other choices would have drafted."""

    def __init__(self, stock: DSparkDrafter) -> None:
        super().__init__(stock.network, stock.target)
        self.others = {
            "unary": DSparkDrafter(stock.network, stock.target, "unary"),
            "marginal": DFlashDrafter(stock.network, stock.target),
        }
        self.seen: dict[str, list[Lattice]] = {name: [] for name in self.others}

    def lattice(self, hidden: torch.Tensor, anchor: int) -> Lattice:
        """The stock lattice."""
        for name, drafter in self.others.items():
            self.seen[name].append(drafter.lattice(hidden, anchor))
        return super().lattice(hidden, anchor)


def dspark(engine: Engine, prompt: list[int], tokens: int) -> dict[str, RecordedOutput]:
    """One request's recordings by choice; the lattices of a recording come in order."""
    probe = engine.drafter
    assert isinstance(probe, Probe)
    for lattices in probe.seen.values():
        lattices.clear()
    stock = engine.record(prompt, tokens, probe.trained_positions)
    count = len(stock.tokens) - 1
    found = {"biased": stock}
    for name, lattices in probe.seen.items():
        kept = lattices[:count]
        ids = np.stack([lattice.ids for lattice in kept])
        edge = np.stack([lattice.edge for lattice in kept])
        found[name] = RecordedOutput(stock.tokens, ids, edge)
    return found


def steps_of(recorded: RecordedOutput, name: str) -> dict[str, int]:
    """Steps of each tree on one recording."""
    width = recorded.ids.shape[1]
    found = {f"{name}/chain": replay(recorded, "chain", width, width + 1)}
    for nodes in NODES:
        found[f"{name}/best_first/{nodes}"] = replay(recorded, "best_first", width, nodes)
    return found | {f"{name}/oracle": oracle(recorded, width)}


def own_steps(engine: Engine, prompt: list[int], tokens: int, nodes: int) -> int:
    """Steps of a live request with the drafter's own tree."""
    live = engine.variant(tree="own", nodes=nodes)
    session = live.start(prompt, tokens)
    while session.finish_reason is None:
        session.step()
    return live.counters.steps


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps per request and tree."""
    engine, tokenizer = load_engine(arguments.target, arguments.drafter, arguments.device)
    if isinstance(engine.drafter, DSparkDrafter):
        engine = Engine(engine.target, Probe(engine.drafter), engine.options)
    engine = engine.variant(tree="best_first", nodes=32)
    requests = []
    for row in read_prompts(arguments.prompts):
        (prompt,) = encode_texts(tokenizer, [row["prompt"]], engine.target.max_positions)
        if isinstance(engine.drafter, Probe):
            recordings = dspark(engine, prompt, arguments.tokens)
        else:
            positions = engine.drafter.trained_positions
            recordings = {"lattice": engine.record(prompt, arguments.tokens, positions)}
        tokens = len(next(iter(recordings.values())).tokens) - 1
        steps: dict[str, int] = {}
        for name, recorded in recordings.items():
            steps |= steps_of(recorded, name)
        if isinstance(engine.drafter, Eagle3Drafter):
            for nodes in NODES[1:]:
                steps[f"own/{nodes}"] = own_steps(engine, prompt, arguments.tokens, nodes)
        requests.append({"kind": row["kind"], "tokens": tokens, "steps": steps})
    return {
        "drafter": engine.drafter.kind,
        "positions": engine.drafter.trained_positions,
        "device": torch.cuda.get_device_name() if arguments.device != "cpu" else "cpu",
        "torch": torch.__version__,
        "requests": requests,
    }


def merged(paths: Sequence[Path], against: str) -> dict[str, Any]:
    """tau of each tree over all requests, and its difference from `against/...`, with intervals."""
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    requests = [request for part in parts for request in part["requests"] if request["tokens"]]
    tokens = np.array([request["tokens"] for request in requests])
    names = list(requests[0]["steps"])
    steps = {name: np.array([request["steps"][name] for request in requests]) for name in names}
    draws = np.random.default_rng(0).integers(0, len(tokens), (_DRAWS, len(tokens)))
    taus = {name: tokens[draws].sum(1) / steps[name][draws].sum(1) for name in names}
    table: dict[str, Any] = {}
    for name in names:
        entry: dict[str, Any] = {
            "tau": round(float(tokens.sum() / steps[name].sum()), 4),
            "interval": np.percentile(taus[name], (2.5, 97.5)).round(4).tolist(),
        }
        tree = name.split("/", 1)[1]
        base = f"{against}/{tree if '/' in tree or not tree.isdigit() else f'best_first/{tree}'}"
        if base in names and base != name:
            gain = float(tokens.sum() / steps[name].sum() - tokens.sum() / steps[base].sum())
            spread = np.percentile(taus[name] - taus[base], (2.5, 97.5)).round(4).tolist()
            entry |= {"over": base, "difference": round(gain, 4), "difference_interval": spread}
        table[name] = entry
    facts = {key: parts[0][key] for key in ("drafter", "positions", "device", "torch")}
    counts = {"requests": len(requests), "tokens": int(tokens.sum())}
    return {**facts, **counts, "trees": table}


def main() -> None:
    """Measure, or merge what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--prompts", type=Path, help="JSONL: prompt, kind")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+")
    parser.add_argument("--json", help="write benchmarks/results/NAME.json")
    arguments = parser.parse_args()
    if arguments.merge is None:
        arguments.out.write_text(json.dumps(measure(arguments), indent=1), encoding="utf-8")
        return
    first = json.loads(arguments.merge[0].read_text(encoding="utf-8"))
    result = merged(arguments.merge, "biased" if first["drafter"] == "dspark" else "lattice")
    for name, entry in result["trees"].items():
        print(f"{name:24} {entry}")
    if arguments.json:
        write(arguments.json, result)


if __name__ == "__main__":
    main()

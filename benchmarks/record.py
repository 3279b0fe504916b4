"""Record lattices and greedy outputs of a real target and drafter, for exact replay.

Prompts are drawn with a seed from each benchmark's own file. The archive holds, per request and
under its running number, `tokens`, `ids`, `edge` and `request_id`, as `specpilot replay` reads it.

    python benchmarks/record.py --data DIR --out recording.npz [--requests 5] [--tokens 64]
"""

import argparse
import hashlib
import random
import time
from pathlib import Path

import numpy as np

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.models import load_target
from specpilot.workload.benchmarks import prompts_of
from specpilot.workload.chat import ChatTokenizer
from specpilot.workload.sources import read_file

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "gsm8k": "gsm8k/test.jsonl",
    "math500": "math500/test.jsonl",
    "humaneval": "humaneval/HumanEval.jsonl.gz",
    "mbpp": "mbpp/mbpp.jsonl",
    "mt_bench": "mt_bench/question.jsonl",
}


def prompts(data: Path, target: Path, requests: int, seed: int) -> list[tuple[str, list[int]]]:
    """(request id, prompt ids), the benchmarks in turn."""
    tokenizer = ChatTokenizer(target)
    drawn = []
    for benchmark, name in SOURCES.items():
        turns = prompts_of(benchmark, read_file(data / name), name)
        chosen = random.Random(seed).sample(turns, requests)
        drawn.append([(turn.id, list(tokenizer.encode_turn(turn.text))) for turn in chosen])
    return [item for row in zip(*drawn, strict=True) for item in row]


def main() -> None:
    """Record and write the archive after every round of benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument(
        "--drafter", type=Path, default=ROOT / "assets/smollm2-135m-instruct-dflash2"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmarks' files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=5, help="per benchmark")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    target = load_target(arguments.target)
    drafter = load_drafter("dflash2", arguments.drafter, target)
    target.taps = drafter.taps
    engine = Engine(target, drafter, EngineOptions(tree="best_first", nodes=32))
    arrays: dict[str, np.ndarray] = {}
    start = time.perf_counter()
    asked = prompts(arguments.data, arguments.target, arguments.requests, arguments.seed)
    for index, (name, prompt) in enumerate(asked):
        recorded = engine.record(prompt, arguments.tokens, arguments.positions)
        arrays |= {
            f"{index}.request_id": np.array(name),
            f"{index}.tokens": recorded.tokens,
            f"{index}.ids": recorded.ids,
            f"{index}.edge": recorded.edge,
        }
        print(f"{time.perf_counter() - start:6.0f} s  {name}: {len(recorded.tokens)} tokens")
        if (index + 1) % len(SOURCES) == 0:
            np.savez_compressed(arguments.out, **arrays)
    digest = hashlib.sha256(arguments.out.read_bytes()).hexdigest()
    print(f"{arguments.out}: sha256 {digest}")


if __name__ == "__main__":
    main()

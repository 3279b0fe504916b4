"""Speed of exact replay on one core, and the table of a real recording.

Speed: the recording is drawn; the target's next token is the drafter's candidate of rank r with a
probability that falls by half with every rank. Every tree is replayed at N=32; best-first trees
also for a whole curve. Processor time of this process, so that other work on the machine counts
little.

    OMP_NUM_THREADS=1 python benchmarks/replay.py [--tokens 4000] [--json]
    python benchmarks/replay.py --recording FILE [--step-seconds 8=0.09,64=0.13] [--json]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from facts import write

from specengine.trees import StepCost
from specpilot.cli.replay import parse_step_seconds, replay_document
from specpilot.costmodel.replay_best_first import best_first_replays
from specpilot.costmodel.replay_files import read_recordings
from specpilot.costmodel.replay_table import TREES, play
from specpilot.engines.base import Recording

BUDGETS = (2, 4, 8, 16, 32, 64)
REAL_BUDGETS = (8, 16, 32, 63)
MISS = 0.1
"""Share of positions where the target's token is not among the candidates."""


def draw(tokens: int, positions: int, candidates: int, seed: int = 0) -> Recording:
    """A recording whose drafter is right about half of the time."""
    rng = np.random.default_rng(seed)
    output = rng.integers(0, 50_000, tokens)
    scores = rng.normal(0, 3, (tokens, positions, candidates, candidates)).astype(np.float32)
    scores[:, 0] = scores[:, 0, :1]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    ids = 50_000 + np.argsort(rng.random((tokens, positions, candidates)), axis=-1)
    for anchor in range(tokens - 1):
        slot = 0
        for position in range(min(positions, tokens - 1 - anchor)):
            rank = int(rng.geometric(0.5)) - 1
            if rank >= candidates or rng.random() < MISS:
                break
            slot = int(np.argsort(-edge[anchor, position, slot])[rank])
            ids[anchor, position, slot] = output[anchor + 1 + position]
    return Recording("drawn", output, ids.astype(np.int64), edge)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Processor seconds, median over rounds."""
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return float(np.median(found))


def speeds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Recorded positions, and steps taken, per second of one core."""
    positions, tokens = arguments.positions, arguments.tokens
    halves = [draw(tokens // 2, positions, arguments.candidates, seed) for seed in (0, 1)]

    def curve() -> list[float]:
        replays = best_first_replays(halves, positions, max(BUDGETS))
        return [replay.at(nodes).tau for replay in replays for nodes in BUDGETS]

    cost = StepCost(1.0, ((1.0, 0.005),))
    found: dict[str, Any] = {}
    print(f"D={positions} K={arguments.candidates}, {tokens} recorded positions, one core, N=32")
    for tree in TREES:
        replays = play(halves, ["", ""], [tree], [32], positions, cost)[tree][32]
        steps = sum(len(item.accepted) for item in replays)
        taken = seconds(
            lambda tree=tree: play(halves, ["", ""], [tree], [32], positions, cost),
            arguments.rounds,
        )
        found[tree] = {"positions_per_second": tokens / taken, "steps_per_second": steps / taken}
        print(f"  {tree:28} {tokens / taken:10,.0f} positions/s {steps / taken:10,.0f} steps/s")
    name = f"best_first, curve to N={max(BUDGETS)}"
    rate = tokens / seconds(curve, arguments.rounds)
    found[name] = {"positions_per_second": rate}
    print(f"  {name:28} {rate:10,.0f} positions/s")
    shape = {"positions": positions, "candidates": arguments.candidates, "tokens": tokens}
    return {**shape, "nodes": 32, "trees": found}


def real(path: Path, step_seconds: str) -> dict[str, Any]:
    """The table of a recording, as `specpilot replay` gives it."""
    from specpilot.cli.replay_display import show

    cost = parse_step_seconds(step_seconds)
    document = replay_document([read_recordings(path)], [], REAL_BUDGETS, None, cost)
    # The file is not part of the repository; its hash says which one it was.
    document["files"][0]["path"] = path.name
    show(document)
    return document | {"step_seconds": step_seconds}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recording", type=Path, help="a real one, as benchmarks/record.py writes")
    parser.add_argument("--step-seconds", default="", help="measured steps, for caddtree")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/replay.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"speed": speeds(arguments)}
    if arguments.recording is not None:
        result["recording"] = real(arguments.recording, arguments.step_seconds)
    if arguments.json:
        write("replay", result)


if __name__ == "__main__":
    main()

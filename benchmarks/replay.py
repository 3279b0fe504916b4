"""Speed of exact replay, and the table of a real recording.

Speed of each tree at N=32, best-first also for a whole curve, on a real recording or on drawn
ones. (Drawn: the target's next token is the drafter's candidate of rank r with a probability that
falls by half with every rank.) Two counts: *steps* are verify steps of the replayed requests;
*positions* are recorded anchors, each with its lattice, more by tau. Time is that of the clock:
from recordings in memory and builders to the replays. The seconds of the fits stand apart.

    OMP_NUM_THREADS=1 python benchmarks/replay.py [--tokens 4000] [--workers 2] [--json]
    python benchmarks/replay.py --recording FILE [--table] [--step-seconds 8=0.09,64=0.13]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from facts import write

from specengine.trees import StepCost
from specpilot.cli.replay import parse_step_seconds, replay_document
from specpilot.costmodel.replay import Replayed
from specpilot.costmodel.replay_files import read_recordings
from specpilot.costmodel.replay_shares import replay_all_shared
from specpilot.costmodel.replay_table import TREES, Builders, builders_of, replay_all
from specpilot.engines.base import Recording

BUDGETS = (2, 4, 8, 16, 32, 64)
REPEATS = 8
"""Times that each real request is replayed: processes take time to start."""
DRAWN = 8
"""Drawn requests."""
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


def rates(count: int, times: list[float]) -> dict[str, float]:
    """Per second: median, and the slowest and fastest round."""
    return {
        "median": count / float(np.median(times)),
        "low": count / max(times),
        "high": count / min(times),
    }


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds on the clock of each round."""
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def speeds(
    items: Sequence[Recording], groups: Sequence[str], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Recorded positions, and verify steps of the replayed requests, per second of each tree."""
    positions, workers = arguments.positions, arguments.workers
    recorded = sum(len(item.tokens) - 1 for item in items)
    cost = StepCost(1.0, ((1.0, 0.005),))
    found: dict[str, Any] = {}
    for tree in [*arguments.trees.split(","), f"best_first, curve to N={max(BUDGETS)}"]:
        name, budgets = (tree, [32]) if tree in TREES else ("best_first", list(BUDGETS))
        start = time.perf_counter()
        builders = builders_of(items, groups, [name], budgets, positions, cost)
        fit_seconds = time.perf_counter() - start

        def work(
            builders: Builders = builders, budgets: Sequence[int] = budgets
        ) -> dict[int, list[Replayed]]:
            if workers == 1:
                (found,) = replay_all(items, builders, budgets, positions).values()
            else:
                (found,) = replay_all_shared(items, builders, budgets, positions, workers).values()
            return found

        replays = work()[32]
        steps = sum(len(item.accepted) for item in replays)
        times = timed(work, arguments.rounds)
        found[tree] = {
            "tau": sum(item.emitted for item in replays) / steps,
            "fit_seconds": fit_seconds,
            "positions_per_second": rates(recorded, times),
            "steps_per_second": rates(steps, times),
        }
        shown = "  ".join(
            f"{rate['median']:9,.0f} [{rate['low']:,.0f}, {rate['high']:,.0f}] {unit}/s"
            for unit, rate in zip(
                ("positions", "steps"), list(found[tree].values())[2:], strict=True
            )
        )
        print(f"  {tree:26} {shown}  fit {fit_seconds:.2f} s", flush=True)
    return {"workers": workers, "recorded_positions": recorded, "nodes": 32, "trees": found}


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
    parser.add_argument("--trees", default=",".join(TREES), help="names of trees to time")
    parser.add_argument("--workers", type=int, default=1, help="processes that share requests")
    parser.add_argument("--table", action="store_true", help="the recording's table too")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/replay.json")
    arguments = parser.parse_args()
    shape = arguments.tokens // DRAWN, arguments.positions, arguments.candidates
    drawn = [draw(*shape, seed) for seed in range(DRAWN)]
    print(f"drawn, D={shape[1]} K={shape[2]}, {DRAWN} x {shape[0]} tokens, N=32")
    result: dict[str, Any] = {"drawn": speeds(drawn, [""] * DRAWN, arguments)}
    if arguments.recording is not None:
        file = read_recordings(arguments.recording)
        items, groups = file.recordings * REPEATS, file.groups * REPEATS
        print(f"{arguments.recording.name}, {REPEATS} times its {len(file.recordings)} requests")
        result["real"] = {"repeats": REPEATS, **speeds(items, groups, arguments)}
        if arguments.table:
            result["recording"] = real(arguments.recording, arguments.step_seconds)
    if arguments.json:
        write("replay", result)


if __name__ == "__main__":
    main()

"""Time to build one draft tree, on one core, for every builder.

Lattices are random log-softmax scores of a given spread: 1 is an unsure drafter, 6 a sure one.
Processor time of this process, so that other work on the machine counts little.

    python benchmarks/trees.py [--positions 16] [--candidates 16] [--json]
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np
from facts import write

from specengine.lattice import Lattice
from specengine.trees import (
    TREES,
    BestFirst,
    CaDDTree,
    Calibrated,
    Oracle,
    Sequoia,
    StepCost,
    TreeBuilder,
    build_shared,
)

BUDGETS = (8, 16, 32, 64)
SPREADS = (1.0, 3.0, 6.0)
SHARED = (8, 128)
"""Requests and rows of the shared budget."""


def draw(
    count: int, positions: int, candidates: int, spread: float, seed: int = 0
) -> list[Lattice]:
    """Random lattices."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, spread, (count, positions, candidates, candidates))
    scores[:, 0] = scores[:, 0, :1]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    ids = np.argsort(rng.random((count, positions, 4 * candidates)), axis=-1)[..., :candidates]
    return [
        Lattice(one.astype(np.int64), two.astype(np.float32)).check()
        for one, two in zip(ids, edge, strict=True)
    ]


def builders(positions: int, candidates: int) -> dict[str, TreeBuilder]:
    """Every builder; parameters as a middling drafter would give them."""
    ranks = 0.6 * 0.5 ** np.arange(candidates)
    nats = (np.arange(16 * 128) + 0.5) / 128
    return {
        **{name: kind.builder for name, kind in TREES.items() if kind.builder is not None},
        "best_first, T 1.3": BestFirst(1.3),
        # Steps of which every row costs next to nothing, so that trees grow to the budget.
        "caddtree": CaDDTree(StepCost(1.0, ((1.0, 1e-9),))),
        "sequoia": Sequoia(tuple(tuple(ranks.tolist()) for _ in range(positions))),
        "calibrated": Calibrated(np.tile(-0.3 - nats, (9, 9, 1))),
        "oracle": Oracle(range(positions)),
    }


def milliseconds(
    builder: TreeBuilder, lattices: Sequence[Lattice], nodes: int, rounds: int
) -> list[float]:
    """Milliseconds per tree, one number per round."""
    times = []
    builder(lattices[0], 1, nodes)
    for _ in range(rounds):
        start = time.process_time()
        for lattice in lattices:
            builder(lattice, 1, nodes)
        times.append(1e3 * (time.process_time() - start) / len(lattices))
    return times


def shared_milliseconds(lattices: Sequence[Lattice], rounds: int) -> list[float]:
    """Milliseconds per step of a shared budget, one number per round."""
    requests, rows = SHARED
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for first in range(0, len(lattices) - requests + 1, requests):
            build_shared(lattices[first : first + requests], [1] * requests, rows)
        times.append(1e3 * (time.process_time() - start) / (len(lattices) // requests))
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/trees.json")
    arguments = parser.parse_args()
    positions, candidates = arguments.positions, arguments.candidates
    rows = []
    print(f"D={positions} K={candidates}: milliseconds per tree, median (worst round)")
    for spread in SPREADS:
        lattices = draw(arguments.count, positions, candidates, spread)
        measured = [
            (name, nodes, milliseconds(builder, lattices, nodes, arguments.rounds))
            for name, builder in builders(positions, candidates).items()
            for nodes in ((positions + 1,) if name == "chain" else BUDGETS)
        ]
        shared = f"shared by {SHARED[0]}"
        measured.append((shared, SHARED[1], shared_milliseconds(lattices, arguments.rounds)))
        for name, nodes, times in measured:
            median, worst = float(np.median(times)), max(times)
            print(f"  {name:12} N={nodes:3} spread {spread:.0f}   {median:.3f} ({worst:.3f})")
            rows.append(
                {
                    "tree": name,
                    "nodes": nodes,
                    "spread": spread,
                    "milliseconds": median,
                    "milliseconds_worst": worst,
                }
            )
    if arguments.json:
        shape = {"positions": positions, "candidates": candidates}
        write("trees", {**shape, "lattices": arguments.count, "trees": rows})


if __name__ == "__main__":
    main()

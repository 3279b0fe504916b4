"""Time to build one draft tree, on one core.

Lattices are random log-softmax scores of a given spread: 1 is an unsure drafter, 6 a sure one.

    python benchmarks/trees.py [--positions 16] [--candidates 16] [--json]
"""

import argparse
import time

import numpy as np
from facts import write

from specengine.lattice import Lattice
from specengine.trees import build

BUDGETS = (8, 16, 32, 64)
SPREADS = (1.0, 3.0, 6.0)


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


def milliseconds(name: str, lattices: list[Lattice], nodes: int, rounds: int) -> list[float]:
    """Milliseconds per tree, one number per round."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for lattice in lattices:
            build(name, lattice, 1, nodes)
        times.append(1e3 * (time.perf_counter() - start) / len(lattices))
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
    rows = []
    print(
        f"D={arguments.positions} K={arguments.candidates}: milliseconds per tree, median (worst)"
    )
    for spread in SPREADS:
        lattices = draw(arguments.count, arguments.positions, arguments.candidates, spread)
        for name in ("chain", "best_first"):
            budgets = (arguments.positions + 1,) if name == "chain" else BUDGETS
            for nodes in budgets:
                times = milliseconds(name, lattices, nodes, arguments.rounds)
                median, worst = float(np.median(times)), max(times)
                print(f"  {name:10} N={nodes:3} spread {spread:.0f}   {median:.3f} ({worst:.3f})")
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
        shape = {"positions": arguments.positions, "candidates": arguments.candidates}
        write("trees", {**shape, "lattices": arguments.count, "trees": rows})


if __name__ == "__main__":
    main()

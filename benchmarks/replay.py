"""Speed of exact replay: recorded output positions per second, on one core.

The recording is drawn: the target's next token is the drafter's candidate of rank r with a
probability that falls by half with every rank. Replay of one budget and of the whole curve is
timed, with all trees built together and, beside it, one by one.

    OMP_NUM_THREADS=1 python benchmarks/replay.py [--tokens 4000] [--json]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from facts import write

from specengine.lattice import Lattice
from specengine.trees import build
from specpilot.costmodel.replay import BestFirstReplay, replay_chain, replay_oracle
from specpilot.engines.base import Recording

BUDGETS = (2, 4, 8, 16, 32, 64)
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


def rate(work: Callable[[], object], positions: int, rounds: int) -> float:
    """Recorded positions per second, median over rounds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return positions / float(np.median(seconds))


def one_by_one(recording: Recording, nodes: int) -> None:
    """Build every position's tree with the heap."""
    for ids, edge in zip(recording.ids, recording.edge, strict=True):
        build("best_first", Lattice(ids, edge), 1, nodes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/replay.json")
    arguments = parser.parse_args()
    positions, tokens = arguments.positions, arguments.tokens
    recording = draw(tokens, positions, arguments.candidates)

    def curve() -> dict[int, float]:
        replay = BestFirstReplay(recording, positions, max(BUDGETS))
        return {nodes: replay.at(nodes).tau for nodes in BUDGETS}

    rates = {
        "best-first, N=32": rate(
            lambda: BestFirstReplay(recording, positions, 32).at(32), tokens, arguments.rounds
        ),
        "best-first, curve to N=64": rate(curve, tokens, arguments.rounds),
        "trees one by one, N=32": rate(lambda: one_by_one(recording, 32), tokens, 1),
        "chain": rate(lambda: replay_chain(recording, positions), tokens, arguments.rounds),
        "oracle": rate(lambda: replay_oracle(recording, positions), tokens, arguments.rounds),
    }
    taus = {f"N={nodes}": tau for nodes, tau in curve().items()}
    taus |= {
        "chain": replay_chain(recording, positions).tau,
        "oracle": replay_oracle(recording, positions).tau,
    }
    print(f"D={positions} K={arguments.candidates}, {tokens} recorded positions, one core")
    for name, value in rates.items():
        print(f"  {name:28} {value:10,.0f} positions/s")
    print("  tau: " + ", ".join(f"{name} {tau:.2f}" for name, tau in taus.items()))
    if arguments.json:
        shape = {"positions": positions, "candidates": arguments.candidates, "tokens": tokens}
        write("replay", {**shape, "positions_per_second": rates, "tau": taus})


if __name__ == "__main__":
    main()

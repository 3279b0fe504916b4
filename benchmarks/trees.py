"""Time to build one draft tree, on one core, for every builder.

Lattices are random log-softmax scores of a given spread: 1 is an unsure drafter, 6 a sure one.
Processor time of this process, so that other work on the machine counts little.

With `--gpu`: microseconds of one build inside a CUDA graph, by the kernel and by the reference.

    python benchmarks/trees.py [--positions 16] [--candidates 16] [--gpu] [--json]
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial

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
    build_best_first,
    build_shared,
)

BUDGETS = (8, 16, 32, 64)
GPU_REQUESTS = (1, 16)
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


def gpu_rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Microseconds of one build of B trees, per budget and spread; medians over rounds."""
    import torch
    from gpu_timing import capture, microseconds, spread

    from specengine.kernels.tree_builder import build_best_first_trees
    from specengine.trees.best_first_torch import build_best_first_device

    def call(build: Callable[..., object], given: tuple[object, ...], _: int) -> None:
        build(*given)

    arms = {"kernel": (build_best_first_trees, 100), "reference": (build_best_first_device, 2)}
    rows: list[dict[str, object]] = []
    for requests, nodes, sure in itertools.product(GPU_REQUESTS, BUDGETS, SPREADS):
        lattices = draw(requests, arguments.positions, arguments.candidates, sure)
        ids = torch.from_numpy(np.stack([item.ids for item in lattices])).cuda()
        edge = torch.from_numpy(np.stack([item.edge for item in lattices])).cuda()
        anchor = torch.arange(requests, device="cuda")
        graphs = {
            name: (capture(partial(call, build, (ids, edge, anchor, nodes)), calls), calls)
            for name, (build, calls) in arms.items()
        }
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(arguments.rounds):
            for name, (graph, calls) in graphs.items():
                times[name].append(microseconds(graph, calls, 5))
        found = {name: spread(values) for name, values in times.items()}
        rows.append({"requests": requests, "nodes": nodes, "spread": sure, "microseconds": found})
        shown = "  ".join(
            f"{name} {t['median']:8.1f} [{t['low']:.1f}, {t['high']:.1f}]"
            for name, t in found.items()
        )
        print(f"  B={requests:3} N={nodes:3} spread {sure:.0f}   {shown}")
    return rows


def handover_rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Microseconds on the clock from a step's scores on the GPU to its tree's rows on the host, by
    the host's builder and by the kernel (option `device_tree`); medians over rounds."""
    import torch
    from gpu_timing import spread

    from specengine.decoding.device_trees import build_on_device
    from specengine.drafters.base import DeviceLattice

    def on_host(lattice: DeviceLattice, nodes: int) -> None:
        build_best_first(lattice.on_host(), 1, nodes)

    def on_device(lattice: DeviceLattice, nodes: int) -> None:
        build_on_device(lattice, 1, arguments.positions, nodes)

    arms = {"host": on_host, "device": on_device}
    rows: list[dict[str, object]] = []
    for nodes, sure in itertools.product(BUDGETS, SPREADS):
        drawn = draw(arguments.count, arguments.positions, arguments.candidates, sure)
        lattices = [
            DeviceLattice(torch.from_numpy(item.ids).cuda(), torch.from_numpy(item.edge).cuda())
            for item in drawn
        ]
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(arguments.rounds):
            for name, build in arms.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                for lattice in lattices:
                    build(lattice, nodes)
                times[name].append(1e6 * (time.perf_counter() - start) / len(lattices))
        found = {name: spread(values) for name, values in times.items()}
        rows.append({"nodes": nodes, "spread": sure, "microseconds": found})
        shown = "  ".join(
            f"{name} {t['median']:8.1f} [{t['low']:.1f}, {t['high']:.1f}]"
            for name, t in found.items()
        )
        print(f"  N={nodes:3} spread {sure:.0f}   {shown}")
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="write the results' file")
    parser.add_argument("--gpu", action="store_true", help="time the GPU's builder instead")
    arguments = parser.parse_args()
    if arguments.gpu:
        import torch

        device = torch.cuda.get_device_name()
        print(f"{device}: microseconds per build in a CUDA graph, median [low, high]")
        found = {"device": device, "torch": torch.__version__, "builds": gpu_rows(arguments)}
        print("microseconds from scores on the GPU to rows on the host, median [low, high]")
        found["handover"] = handover_rows(arguments)
        if arguments.json:
            write("trees_gpu", found)
        return
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

"""Products by packed weights against cuBLAS, on one Hopper GPU, with a cold L2 cache.

Each arm is a CUDA graph of products whose weights rotate among copies of more than 300 MB, so that
none is in L2 when it is read. Arms are replayed in turn, round by round; a ratio is cuBLAS's time
over ours in the same round, given as median with the smallest and largest round. Escapes are applied.
"pdl": the next product's weights may load while the last one ends (dependent launches); "sustained":
arms run back to back for a while, so that the power limit counts.

    python benchmarks/weights.py [--shapes out,head] [--rows 1,32] [--sustained] [--json]
"""

import argparse
import statistics
import subprocess
from collections.abc import Callable
from typing import Any

import torch
from facts import write

from specengine.kernels import w12_linear
from specengine.weights import Packed, encode, join

SHAPES = {
    "gdn_in_proj": (16384, 5120),
    "out_proj": (5120, 6144),
    "attention_qkv": (14336, 5120),
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "lm_head": (248320, 5120),
}
ROWS = (1, 8, 16, 32, 64)
COLD_BYTES = 300e6
ENCODED_CHANNELS = 1024
SUSTAINED_SECONDS = 0.6

Call = Callable[[int], None]


def random_matrix(channels: int, width: int) -> torch.Tensor:
    """Near-Gaussian channels of different scales, as trained weights are."""
    matrix = torch.randn(channels, width, device="cuda")
    return (matrix * (0.01 + 0.02 * torch.rand(channels, 1, device="cuda"))).bfloat16()


def packed_matrix(channels: int, width: int) -> Packed:
    """A matrix of that size; its tiles repeat, which the memory cannot know."""
    part = encode(random_matrix(min(channels, ENCODED_CHANNELS), width), "w12")
    times, left = divmod(channels, ENCODED_CHANNELS)
    parts = [part] * times
    if left:
        parts.append(part.stretch(0, left // 128))
    return join(parts)


def copies(packed: Packed) -> list[w12_linear.Weights]:
    count = max(2, int(COLD_BYTES / packed.nbytes) + 1)
    return [
        w12_linear.Weights(
            packed.records.clone(),
            packed.scale.clone(),
            packed.escapes.clone(),
            packed.escape_offsets.clone(),
        )
        for _ in range(count)
    ]


def capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` products, replayed once."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, calls: int, replays: int = 1) -> float:
    """Time of one product."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / (calls * replays)


def read_ceiling() -> float:
    """TB/s of the fastest of some sums over 2 GiB."""
    data = torch.randn(1 << 29, device="cuda")
    graph = capture(lambda _: data.sum(), 4)
    return data.nbytes / min(microseconds(graph, 4) for _ in range(7)) / 1e6


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }


def compare(
    name: str, rows: int, weights: list[w12_linear.Weights], dense: list[torch.Tensor], options: Any
) -> dict[str, Any]:
    """Both arms, with and without dependent launches."""
    channels, width = SHAPES[name]
    x = torch.randn(rows, width, device="cuda").bfloat16()
    y = torch.empty(rows, channels, dtype=torch.bfloat16, device="cuda")
    calls = 8 if name == "lm_head" else 24

    def ours(dependent: bool) -> Call:
        return lambda i: w12_linear.multiply(x, weights[i % len(weights)], y, dependent=dependent)

    graphs = {
        "cublas": capture(lambda i: torch.nn.functional.linear(x, dense[i % len(dense)]), calls),
        "pdl": capture(ours(True), calls),
        "no_pdl": capture(ours(False), calls),
    }
    rounds = [
        {arm: microseconds(graph, calls) for arm, graph in graphs.items()}
        for _ in range(options.rounds)
    ]
    result: dict[str, Any] = {"shape": name, "channels": channels, "width": width, "rows": rows}
    result["burst"] = summary(rounds, weights[0], options.ceiling)
    if options.sustained:
        lasting = {}
        for arm, graph in graphs.items():
            replays = int(SUSTAINED_SECONDS * 1e6 / (calls * rounds[0][arm])) + 1
            lasting[arm] = microseconds(graph, calls, replays)
        result["sustained"] = summary([lasting], weights[0], options.ceiling)
    return result


def summary(
    rounds: list[dict[str, float]], weights: w12_linear.Weights, ceiling: float
) -> dict[str, Any]:
    """Times, ratios, and the bandwidth that our arms reach."""
    stored = sum(
        array.nbytes
        for array in (weights.records, weights.scale, weights.escapes, weights.escape_offsets)
    )
    result: dict[str, Any] = {
        f"{arm}_microseconds": spread([one[arm] for one in rounds]) for arm in rounds[0]
    }
    for arm in ("pdl", "no_pdl"):
        median = result[f"{arm}_microseconds"]["median"]
        result[f"{arm}_ratio"] = spread([one["cublas"] / one[arm] for one in rounds])
        result[f"{arm}_terabytes_per_second"] = round(stored / median / 1e6, 3)
        result[f"{arm}_of_read_ceiling"] = round(stored / median / 1e6 / ceiling, 3)
    return result


def line(result: dict[str, Any]) -> str:
    text = f"{result['shape']:14s} {result['rows']:3d}"
    for kind in ("burst", "sustained"):
        if kind in result:
            one = result[kind]
            text += f" | {one['cublas_microseconds']['median']:6.1f}"
            for arm in ("pdl", "no_pdl"):
                ratio = one[f"{arm}_ratio"]
                text += (
                    f" | {one[f'{arm}_microseconds']['median']:6.1f}"
                    f" {one[f'{arm}_terabytes_per_second']:.2f}"
                    f" {one[f'{arm}_of_read_ceiling']:.2f}"
                    f" {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
                )
    return text


def hardware() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    seen = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return {"gpu": seen, "torch": torch.__version__, "cuda": torch.version.cuda}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sustained", action="store_true", help="also with the power limit")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/weights.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    options.ceiling = read_ceiling()
    print(f"read ceiling {options.ceiling:.2f} TB/s")
    print("shape         rows | cuBLAS us | pdl: us, TB/s, of ceiling, ratio | no_pdl: the same")
    results = []
    for name in options.shapes.split(","):
        weights = copies(packed_matrix(*SHAPES[name]))
        dense = [random_matrix(*SHAPES[name]) for _ in weights]
        for rows in map(int, options.rows.split(",")):
            results.append(compare(name, rows, weights, dense, options))
            print(line(results[-1]), flush=True)
    if options.json:
        write(
            "weights",
            hardware()
            | {"read_ceiling_terabytes_per_second": round(options.ceiling, 3), "results": results},
        )


if __name__ == "__main__":
    main()

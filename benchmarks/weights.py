"""Products by packed weights against cuBLAS, on one Hopper GPU, with a cold L2 cache.

Each arm is a CUDA graph of products whose weights rotate among copies of more than 300 MB, so that
none is in L2 when it is read. Arms are replayed in turn, round by round; a ratio is cuBLAS's time
over ours in the same round, given as median with the smallest and largest round. Escapes are
applied. "pdl": the next product's weights may load while the last one ends (dependent launches).
"burst": after each replay the GPU rests twice as long, so that the power limit does not count.
"sustained": arms run back to back for a while, so that it does. "mma": the way of other GPUs.

    python benchmarks/weights.py [--formats w12,w11s] [--shapes out_proj,lm_head] [--rows 1,32]
        [--sustained] [--decode] [--head] [--mma] [--json]
"""

import argparse
import subprocess
import time
from typing import Any

import torch
from facts import write
from gpu_timing import Call, capture, microseconds, spread
from weights_head import compare_head, head_line

from specengine.kernels import packed_linear as kernels
from specengine.kernels import portable_linear
from specengine.weights import encode, encode_low_bit, join

SHAPES = {
    "gdn_in_proj": (16384, 5120),
    "out_proj": (5120, 6144),
    "attention_qkv": (14336, 5120),
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "lm_head": (248320, 5120),
}
HEADS = ((248320, 5120), (49152, 576))
ROWS = (1, 8, 16, 32, 64)
COLD_BYTES = 300e6
ENCODED_CHANNELS = 1024
SUSTAINED_SECONDS, SUSTAINED_ROWS = 0.5, (1, 32)


def random_matrix(channels: int, width: int) -> torch.Tensor:
    """Near-Gaussian channels of different scales, as trained weights are."""
    matrix = torch.randn(channels, width, device="cuda")
    return (matrix * (0.01 + 0.02 * torch.rand(channels, 1, device="cuda"))).bfloat16()


def packed_matrix(name: str, channels: int, width: int) -> kernels.Weights:
    """A matrix of that size; its tiles repeat, which the memory cannot know."""
    part = random_matrix(ENCODED_CHANNELS, width)
    times, left = divmod(channels, ENCODED_CHANNELS)
    if name in ("e2m5", "e2m4", "e2m3"):
        copy = encode_low_bit(part, name)
        records = copy.records.flatten()
        whole = (channels * records.numel()) // ENCODED_CHANNELS
        scale = copy.scale.repeat(times + 1)[:channels]
        return kernels.Weights(name, records.repeat(times + 1)[:whole], scale)
    packed = encode(part, "w12n" if name == "w12n_view" else name)
    packed = join([packed] * times + ([packed.stretch(0, left // 128)] if left else []))
    if name == "w12n_view":
        return kernels.Weights(name, packed.records, packed.scale)
    return kernels.Weights.of(packed)


def read_bytes(weights: kernels.Weights) -> int:
    """What a product must read of the weights."""
    form = kernels.FORMATS[weights.format]
    unread = 1 - form.read_bytes / form.stride_bytes if form.stride_bytes else 0
    stored = sum(tensor.nbytes for tensor in weights.tensors().values())
    return int(stored - unread * weights.records.nbytes)


def copies(weights: kernels.Weights) -> list[kernels.Weights]:
    count = max(2, int(COLD_BYTES / read_bytes(weights)) + 1)
    return [
        kernels.Weights(
            weights.format,
            **{name: one.clone() for name, one in weights.tensors().items()},
            record_bytes=weights.record_bytes,
        )
        for _ in range(count)
    ]


def read_ceiling() -> float:
    """TB/s of the fastest of some sums over 2 GiB."""
    data = torch.randn(1 << 29, device="cuda")
    graph = capture(lambda _: data.sum(), 4)
    return data.nbytes / min(microseconds(graph, 4) for _ in range(7)) / 1e6


def decode_rate(weights: kernels.Weights, channels: int, width: int) -> dict[str, float]:
    """GB/s of BF16 that the decoder writes."""
    out = torch.empty(channels, width, dtype=torch.bfloat16, device="cuda")
    graph = capture(lambda _: kernels.decode(weights, out), 4)
    return spread([out.nbytes / microseconds(graph, 4) / 1e3 for _ in range(7)])


def burst(graph: torch.cuda.CUDAGraph, calls: int) -> float:
    """Time of one product in microseconds, of a GPU that rests afterwards."""
    taken = microseconds(graph, calls)
    time.sleep(2e-6 * taken * calls)
    return taken


def compare(
    name: str,
    rows: int,
    packed: dict[str, list[kernels.Weights]],
    dense: list[torch.Tensor],
    options: Any,
) -> dict[str, Any]:
    """All arms of one shape and number of rows."""
    channels, width = SHAPES[name]
    x = torch.randn(rows, width, device="cuda").bfloat16()
    y = torch.empty(rows, channels, dtype=torch.bfloat16, device="cuda")
    calls = 8 if name == "lm_head" else 24

    def ours(weights: list[kernels.Weights], dependent: bool) -> Call:
        return lambda i: kernels.multiply(x, weights[i % len(weights)], y, dependent=dependent)

    def cublas(i: int) -> None:
        torch.nn.functional.linear(x, dense[i % len(dense)])

    def portable(weights: list[kernels.Weights]) -> Call:
        return lambda i: portable_linear.multiply(x, weights[i % len(weights)], y)

    graphs = {"cublas": capture(cublas, calls)}
    for form, weights in packed.items():
        graphs[f"{form} pdl"] = capture(ours(weights, True), calls)
        graphs[f"{form} no_pdl"] = capture(ours(weights, False), calls)
        if options.mma and portable_linear.multiplies(form, (8, 0)):
            graphs[f"{form} mma"] = capture(portable(weights), calls)
    rounds = [
        {arm: burst(graph, calls) for arm, graph in graphs.items()} for _ in range(options.rounds)
    ]
    result: dict[str, Any] = {"shape": name, "channels": channels, "width": width, "rows": rows}
    result["burst"] = summary(rounds, packed, options.ceiling)
    if options.sustained and rows in SUSTAINED_ROWS:
        lasting = {}
        for arm, graph in graphs.items():
            replays = int(SUSTAINED_SECONDS * 1e6 / (calls * rounds[0][arm])) + 1
            lasting[arm] = microseconds(graph, calls, replays)
        result["sustained"] = summary([lasting], packed, options.ceiling)
    return result


def summary(
    rounds: list[dict[str, float]], packed: dict[str, list[kernels.Weights]], ceiling: float
) -> dict[str, Any]:
    """Times, ratios to cuBLAS and to W12, and the bandwidth that each arm reaches."""
    result: dict[str, Any] = {}
    for arm in rounds[0]:
        one: dict[str, Any] = {"microseconds": spread([times[arm] for times in rounds])}
        if arm != "cublas":
            form, launches = arm.split()
            rate = read_bytes(packed[form][0]) / one["microseconds"]["median"] / 1e6
            one["terabytes_per_second"] = round(rate, 3)
            one["of_read_ceiling"] = round(rate / ceiling, 3)
            one["over_cublas"] = spread([times["cublas"] / times[arm] for times in rounds])
            reference = f"w12 {launches}"
            if form != "w12" and reference in rounds[0]:
                one["over_w12"] = spread([times[reference] / times[arm] for times in rounds])
        result[arm] = one
    return result


def lines(result: dict[str, Any]) -> list[str]:
    """A line for each arm."""
    found = []
    for kind in ("burst", "sustained"):
        for arm, one in result.get(kind, {}).items():
            text = f"{result['shape']:14s}{result['rows']:3d} {kind:9s} {arm:16s}"
            text += f"{one['microseconds']['median']:7.1f} us"
            if arm != "cublas":
                ratio = one["over_cublas"]
                text += f" {one['terabytes_per_second']:5.2f} TB/s {one['of_read_ceiling']:5.2f}"
                text += f" x{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
            if "over_w12" in one:
                text += f"  over w12 {one['over_w12']['median']:.3f}"
            found.append(text)
    return found


def hardware() -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    seen = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return {"gpu": seen, "torch": torch.__version__, "cuda": torch.version.cuda}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="w12,w11s")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sustained", action="store_true", help="also with the power limit")
    parser.add_argument("--decode", action="store_true", help="also time decoding to BF16")
    parser.add_argument("--head", action="store_true", help="also time the certified argmax")
    parser.add_argument("--mma", action="store_true", help="also time the kernel of other GPUs")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/weights.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    options.ceiling = read_ceiling()
    print(f"read ceiling {options.ceiling:.2f} TB/s")
    results: list[dict[str, Any]] = []
    decoding: dict[str, dict[str, float]] = {}
    for name in options.shapes.split(","):
        packed = {
            form: copies(packed_matrix(form, *SHAPES[name])) for form in options.formats.split(",")
        }
        for form, weights in packed.items():
            if options.decode and kernels.FORMATS[form].lossless:
                decoding[f"{form} {name}"] = decode_rate(weights[0], *SHAPES[name])
                print(f"{form} {name} decoded at {decoding[f'{form} {name}']} GB/s of BF16")
        count = max(len(weights) for weights in packed.values())
        dense = [random_matrix(*SHAPES[name]) for _ in range(count)]
        for rows in map(int, options.rows.split(",")):
            results.append(compare(name, rows, packed, dense, options))
            print(*lines(results[-1]), sep="\n", flush=True)
    heads = []
    for channels, width in HEADS if options.head else ():
        for state in compare_head(channels, width, options.rounds):
            heads.append(state)
            print(head_line(state), flush=True)
    if options.json:
        write(
            "weights",
            hardware()
            | {"read_ceiling_terabytes_per_second": round(options.ceiling, 3), "results": results}
            | ({"decode_gigabytes_per_second": decoding} if decoding else {})
            | ({"certified_head": heads} if heads else {}),
        )


if __name__ == "__main__":
    main()

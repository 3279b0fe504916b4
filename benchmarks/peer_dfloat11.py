"""Decoding whole matrices to BF16 on one GPU: W12 and W11s beside the DFloat11 package.

DFloat11 (PyPI `dfloat11`, needs `cupy`) is encoded and decoded by its own code: the hook that it
runs before a layer is called as it stands. All arms decode the same matrix, verify every bit, and
then take turns; each rotates among copies of more than 300 MB, so that none is in L2.

    pip install dfloat11 cupy-cuda13x
    python benchmarks/peer_dfloat11.py [--channels 6144] [--width 5120] [--rounds 7] [--json]
"""

import argparse
import contextlib
import io
import os
import statistics
from collections.abc import Callable

import torch
from facts import write

from specengine.kernels import packed_linear as kernels
from specengine.weights import encode

COLD_BYTES = 300e6
CALLS = 20

Call = Callable[[int], torch.Tensor]


def matrix(channels: int, width: int) -> torch.Tensor:
    """Near-Gaussian channels of different scales, as trained weights are."""
    torch.manual_seed(0)
    drawn = torch.randn(channels, width) * (0.01 + 0.02 * torch.rand(channels, 1))
    return drawn.bfloat16()


def dfloat11_arm(weight: torch.Tensor) -> tuple[Call, float]:
    """Its decoder over copies of one encoded matrix, and bits per weight."""
    import cupy
    from dfloat11 import dfloat11 as package
    from dfloat11.dfloat11_utils import encode_weights, get_32bit_codec, get_codec, get_luts

    threads, each = package.threads_per_block, package.bytes_per_thread
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _, counter = get_codec(weight.view(-1))
        codec, _, table = get_32bit_codec(counter)
        luts = get_luts(table)
        encoded, rest, positions, gaps, _ = encode_weights(
            [weight.view(-1)], codec, each, threads[0]
        )
    parts = {
        "luts": luts,
        "encoded_exponent": encoded,
        "sign_mantissa": rest,
        "output_positions": positions.view(torch.uint8),
        "gaps": gaps,
    }
    size = sum(part.numel() for part in parts.values())
    places = positions.view(torch.uint32).numpy()
    shared = threads[0] * 4 + 4 + int((places[1:] - places[:-1]).max()) * 2
    layers = []
    for _ in range(1 + int(COLD_BYTES // size)):
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        del layer.weight
        layer.weight = None
        layer.shared_mem_size = shared
        for name, part in parts.items():
            layer.register_buffer(name, part.cuda())
        layers.append(layer)
    hook = package.get_hook(threads, each)

    def call(i: int) -> torch.Tensor:
        layer = layers[i % len(layers)]
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            hook(layer, None)
        decoded: torch.Tensor = layer.weight
        return decoded

    return call, 8 * size / weight.numel()


def our_arm(weight: torch.Tensor, form: str) -> tuple[Call, float]:
    """Our decoder of one format over copies, and bits per weight."""
    packed = encode(weight, form)
    count = 1 + int(COLD_BYTES // packed.nbytes)
    copies = []
    for _ in range(count):
        arrays = {name: array.cuda() for name, array in packed.arrays().items()}
        copies.append(kernels.Weights(form, **arrays))
    out = torch.empty(weight.shape, dtype=torch.bfloat16, device="cuda")

    def call(i: int) -> torch.Tensor:
        kernels.decode(copies[i % count], out)
        return out

    return call, 8 * packed.nbytes / weight.numel()


def microseconds(call: Call) -> float:
    """Mean of a queue of calls, on the device's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for i in range(CALLS):
        call(i)
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / CALLS


def main() -> None:
    """Check every arm bit for bit, then time them in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, default=6144)
    parser.add_argument("--width", type=int, default=5120)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    weight = matrix(arguments.channels, arguments.width)
    arms = {form: our_arm(weight, form) for form in ("w12", "w11s")}
    arms["dfloat11"] = dfloat11_arm(weight)
    bits = weight.view(torch.int16).cuda()
    for name, (call, _) in arms.items():
        decoded = call(0).view(torch.int16).view(bits.shape)
        if not torch.equal(decoded, bits):
            raise SystemExit(f"error: {name} does not give the matrix back")
        microseconds(call)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(arguments.rounds):
        for name, (call, _) in arms.items():
            times[name].append(microseconds(call))
    result = {}
    for name, (_, size) in arms.items():
        ratios = [b / a for a, b in zip(times[name], times["dfloat11"], strict=True)]
        median = statistics.median(times[name])
        result[name] = {
            "microseconds": median,
            "gigabytes_per_second": weight.nbytes / median / 1e3,
            "bits_per_weight": size,
            "over_dfloat11": statistics.median(ratios),
            "over_dfloat11_low": min(ratios),
            "over_dfloat11_high": max(ratios),
        }
        print(
            f"{name:9} {median:8.1f} us  {weight.nbytes / median / 1e3:7.0f} GB/s of BF16  "
            f"{size:.3f} bits per weight  {statistics.median(ratios):.2f}x dfloat11 "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    if arguments.json:
        shape = [arguments.channels, arguments.width]
        gpu = torch.cuda.get_device_name()
        write(
            "peer_dfloat11",
            {"gpu": gpu, "torch": torch.__version__, "shape": shape, "results": result},
        )


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    main()

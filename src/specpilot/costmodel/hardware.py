"""Peak rates of a device: datasheet values for GPUs, a short measurement for CPUs."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from specpilot.core.errors import DeploymentError
from specpilot.core.numbers import Positive
from specpilot.core.record import Record


class Peaks(Record):
    """What a device can do at best."""

    flops_per_second: Positive
    bytes_per_second: Positive
    source: str
    """Where the two numbers come from, in words."""


_GPUS = {
    "H200": (989e12, 4.8e12),
    "H100": (989e12, 3.35e12),
    "RTX PRO 6000": (504e12, 1.79e12),
}
"""Dense BF16 FLOP/s and bytes/s by name, from the vendor's datasheets."""


def gpu_peaks(name: str) -> Peaks:
    """Datasheet peaks of a GPU by the name that the driver gives.

    Raises:
        DeploymentError: the GPU is not in the table.
    """
    for known, (flops, bandwidth) in _GPUS.items():
        if known in name:
            return Peaks(
                flops_per_second=flops,
                bytes_per_second=bandwidth,
                source=f"datasheet of the {known}, dense BF16",
            )
    raise DeploymentError(
        f"no peak rates are known for '{name}'",
        where="platform.devices",
        fix=f"known GPUs: {', '.join(_GPUS)}",
    )


_BF16_OVER_FP32 = (("amx_bf16", 16.0), ("avx512_bf16", 2.0))
"""Operations per cycle and core of BF16 over FP32 by CPU flag, from the vendor's tables: 1024
with AMX, 128 with AVX-512 BF16, 64 in FP32."""


def cpu_peaks(threads: int | None = None, seconds: float = 0.4, dtype: str = "float32") -> Peaks:
    """Measure memory reads and FP32 matrix products on the cores of this process.

    numpy has no BF16 products. For BF16 the measured FP32 rate is multiplied by the vendor's ratio
    of operations per cycle where the CPU has BF16 units, so that a floor stays below what a good
    kernel reaches; `source` says so.

    Args:
        threads: threads that read memory; all cores when None. Products use numpy's own threads.
        seconds: time for each of the two measurements.
        dtype: what the weights are served in.
    """
    count = threads or len(os.sched_getaffinity(0))
    unit, ratio = _bf16_units(_cpu_flags()) if dtype == "bfloat16" else ("", 1.0)
    scaled = f", times {ratio:g} for {unit}" if unit else ""
    return Peaks(
        flops_per_second=_matrix_rate(seconds) * ratio,
        bytes_per_second=_read_rate(count, seconds),
        source=f"measured with numpy: memory reads on {count} threads, FP32 products{scaled}",
    )


def _bf16_units(flags: frozenset[str]) -> tuple[str, float]:
    """Name and FLOP ratio of the CPU's BF16 units; nothing and 1 without them."""
    return next(((flag, ratio) for flag, ratio in _BF16_OVER_FP32 if flag in flags), ("", 1.0))


def _cpu_flags() -> frozenset[str]:
    """Flags that the kernel names; none where it names none, as on other architectures."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def _matrix_rate(seconds: float) -> float:
    size = 1024
    rng = np.random.default_rng(0)
    left = rng.standard_normal((size, size), dtype=np.float32)
    right = rng.standard_normal((size, size), dtype=np.float32)
    out = left @ right
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        np.matmul(left, right, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def _read_rate(threads: int, seconds: float) -> float:
    arrays = [np.ones(32 * 2**20, dtype=np.float32) for _ in range(threads)]
    total = sum(array.nbytes for array in arrays)
    best, until = float("inf"), time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while time.perf_counter() < until:
            start = time.perf_counter()
            list(pool.map(lambda array: float(np.dot(array, array)), arrays))
            best = min(best, time.perf_counter() - start)
    return total / best

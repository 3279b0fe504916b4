"""Peak rates of a device: datasheet values for GPUs, a short measurement for CPUs."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

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


def cpu_peaks(threads: int | None = None, seconds: float = 0.4) -> Peaks:
    """Measure FP32 matrix products and memory reads on the cores of this process.

    numpy has no BF16, so on a CPU with BF16 matrix units the FLOP peak is a lower bound and the
    kernel factor an underestimate where compute bounds; `source` says so.
    """
    count = threads or len(os.sched_getaffinity(0))
    return Peaks(
        flops_per_second=_matrix_rate(seconds),
        bytes_per_second=_read_rate(count, seconds),
        source=f"measured with numpy on {count} threads: FP32 products, memory reads; "
        "BF16 matrix units may exceed the FLOP rate",
    )


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

"""Floors and factors against numbers worked out by hand."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from specpilot.core.errors import DeploymentError, WorkloadError
from specpilot.core.measurement import KernelClass, Profile
from specpilot.costmodel.ceiling import ceiling_facts, step_cost
from specpilot.costmodel.floors import StepWork, floor_seconds
from specpilot.costmodel.hardware import Peaks, cpu_peaks, gpu_peaks
from specpilot.costmodel.shapes import ModelShape, drafter_parameters, target_shape
from specpilot.engines.base import Recording
from specpilot.loop.facts import Factor

SHAPE = ModelShape(
    matrix_parameters=900,
    head_parameters=100,
    vector_parameters=10,
    weight_bytes=2,
    layers=2,
    hidden=10,
    heads=2,
    head_size=5,
    kv_bytes_per_token=80,
    state_bytes=0,
    recurrent_layers=0,
)
WORK = StepWork(rows=8, drafted=7, context=100, prompt_rows_per_step=4, prefills_per_step=0.1)


def write_header(folder: Path, tensors: dict[str, list[int]]) -> None:
    header = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in tensors.items()
    }
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)


def test_memory_bound_and_compute_bound_floors() -> None:
    slow_memory = Peaks(flops_per_second=1e12, bytes_per_second=1000, source="test")
    floors = floor_seconds(SHAPE, 50, WORK, slow_memory)
    assert floors[KernelClass.TARGET_GEMM] == pytest.approx(1000 * 2 / 900)
    assert floors[KernelClass.ATTENTION] == pytest.approx(108 * 80 / 900)
    assert floors[KernelClass.DRAFTER] == pytest.approx(150 * 2 / 900)
    slow_math = Peaks(flops_per_second=1000, bytes_per_second=1e12, source="test")
    floors = floor_seconds(SHAPE, 50, WORK, slow_math)
    assert floors[KernelClass.TARGET_GEMM] == pytest.approx(2 * 1000 * 8 / 600)
    assert floors[KernelClass.PREFILL] == pytest.approx(2 * 900 * 4 / 600)


def test_step_cost_interpolates_and_extrapolates() -> None:
    measured = {8: 1.0, 16: 2.0, 32: 3.0}
    assert step_cost(measured, 9.0, 12) == pytest.approx(1.5)
    assert step_cost(measured, 9.0, 4) == pytest.approx(1.0)
    assert step_cost(measured, 9.0, 48) == pytest.approx(4.0)
    assert step_cost({}, 9.0, 48) == 9.0


def test_factors_multiply_and_the_largest_is_named() -> None:
    tokens = np.arange(1, 31, dtype=np.int64)
    ids = np.stack([np.arange(i + 2, i + 6)[:, None] * [1, 100] for i in range(30)])
    edge = np.full((30, 4, 2, 2), np.log(0.5), dtype=np.float32)
    profile = Profile(steps=10, seconds_per_step=1.2, by_class={KernelClass.TARGET_GEMM: 0.8})
    facts = ceiling_facts(
        recordings=[Recording("r", tokens, ids, edge)],
        profiles=[profile],
        tau=2.0,
        autoregressive_seconds=0.5,
        step_seconds={2: 1.0, 64: 1.0},
        floors={KernelClass.TARGET_GEMM: 0.4},
    )
    assert facts.kernel_factor == pytest.approx(2.0)
    assert facts.overhead_factor == pytest.approx(1.5)
    assert facts.tau_factor == pytest.approx(facts.tau_best / 2.0)
    assert facts.ceiling == pytest.approx(facts.tau_factor * 3.0)
    assert facts.largest is max(
        (Factor.TAU, Factor.KERNEL, Factor.OVERHEAD),
        key=lambda factor: getattr(facts, f"{factor}_factor"),
    )
    taus = [tau for _, tau, _ in facts.curve]
    assert taus == sorted(taus)


def test_shapes_come_from_headers(tmp_path: Path) -> None:
    config = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_header(
        tmp_path,
        {
            "model.embed_tokens.weight": [32, 8],
            "model.layers.0.mlp.up_proj.weight": [16, 8],
            "model.norm.weight": [8],
            "candidate_selector.successor_codebook": [32, 4],
        },
    )
    shape = target_shape(tmp_path, "bfloat16")
    assert shape.head_parameters == 256
    assert shape.vector_parameters == 8
    assert shape.kv_bytes_per_token == 2 * 2 * 1 * 4 * 2
    assert drafter_parameters(tmp_path) == 256 + 128 + 8


def test_bad_folders_and_unknown_gpus_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no safetensors"):
        drafter_parameters(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(WorkloadError, match="header"):
        drafter_parameters(tmp_path)
    with pytest.raises(DeploymentError, match="GeForce"):
        gpu_peaks("NVIDIA GeForce RTX 2060")
    assert gpu_peaks("NVIDIA H200").bytes_per_second == 4.8e12


def test_cpu_peaks_are_measured() -> None:
    peaks = cpu_peaks(threads=1, seconds=0.05)
    assert peaks.flops_per_second > 1e8
    assert peaks.bytes_per_second > 1e8
    assert "measured" in peaks.source

"""Floors and factors against numbers worked out by hand."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from drawn_recordings import drawn_recording

from specengine.trees import BestFirst
from specpilot.core.errors import DeploymentError, WorkloadError
from specpilot.core.measurement import KernelClass, Profile
from specpilot.costmodel import hardware
from specpilot.costmodel.ceiling import (
    best_first_curve,
    ceiling_facts,
    step_cost,
    tempered_curve,
)
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
    attention_width=10,
    attention_layers=2,
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


def write_config(folder: Path, **config: object) -> None:
    (folder / "config.json").write_text(json.dumps(config))


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


def test_a_temperature_is_told_where_it_saves_steps() -> None:
    items = [drawn_recording(seed, tokens=60) for seed in range(3)]
    plain = best_first_curve(items, 5, BestFirst())
    temperature, curve = tempered_curve(items, 5, 16, plain[16])
    # Targets that know nothing of their drafts: any confidence is too much.
    assert temperature > 1.0
    assert curve == best_first_curve(items, 5, BestFirst(temperature))
    assert curve[16] > plain[16]
    assert tempered_curve(items, 5, 16, curve[16]) == (1.0, {})


def test_shapes_come_from_headers(tmp_path: Path) -> None:
    write_config(tmp_path, hidden_size=8, num_hidden_layers=2)
    tensors = {
        "model.embed_tokens.weight": [32, 8],
        "model.layers.0.mlp.up_proj.weight": [16, 8],
        "model.norm.weight": [8],
    }
    for layer in range(2):
        name = f"model.layers.{layer}.self_attn"
        # The query projection of a gated layer is twice as wide as its heads.
        tensors |= {
            f"{name}.q_proj.weight": [24, 8],
            f"{name}.k_proj.weight": [4, 8],
            f"{name}.v_proj.weight": [4, 8],
            f"{name}.o_proj.weight": [8, 12],
        }
    write_header(tmp_path, tensors)
    shape = target_shape(tmp_path, "bfloat16")
    assert shape.matrix_parameters == 16 * 8 + 2 * (24 * 8 + 2 * 4 * 8 + 8 * 12)
    assert shape.head_parameters == 32 * 8
    assert shape.vector_parameters == 8
    assert (shape.attention_width, shape.attention_layers) == (12, 2)
    assert shape.kv_bytes_per_token == 2 * (4 + 4) * 2
    assert target_shape(tmp_path, "float32").weight_bytes == 4


def test_text_decoding_reads_neither_vision_nor_prediction_layers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"text_config": {"hidden_size": 8, "num_hidden_layers": 1}})
    )
    text = {
        "model.language_model.embed_tokens.weight": [32, 8],
        "model.language_model.layers.0.mlp.up_proj.weight": [16, 8],
        "lm_head.weight": [32, 8],
    }
    other = {"model.visual.patch.weight": [64, 64], "mtp.layers.0.mlp.up_proj.weight": [16, 8]}
    write_header(tmp_path, text | other)
    shape = target_shape(tmp_path, "bfloat16")
    assert (shape.matrix_parameters, shape.head_parameters) == (128, 256)


def test_a_hybrid_reads_and_writes_its_state(tmp_path: Path) -> None:
    write_config(
        tmp_path,
        hidden_size=8,
        num_hidden_layers=4,
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
        linear_conv_kernel_dim=4,
    )
    write_header(tmp_path, {"model.layers.3.self_attn.o_proj.weight": [8, 8]})
    shape = target_shape(tmp_path, "bfloat16")
    per_layer = 4 * (4 * 8 * 16 + (2 * 2 * 8 + 4 * 16) * 3)
    assert shape.state_bytes == 3 * per_layer
    assert (shape.recurrent_layers, shape.attention_layers) == (3, 1)
    peaks = Peaks(flops_per_second=1e15, bytes_per_second=1000, source="test")
    floors = floor_seconds(shape, 0, WORK, peaks)
    assert floors[KernelClass.RECURRENT] == pytest.approx(2 * 3 * per_layer / 900)


@pytest.mark.parametrize("key", ["layer_types", "sliding_window_pattern"])
def test_sliding_layers_read_their_window(key: str, tmp_path: Path) -> None:
    pattern = ["sliding_attention"] * 5 + ["full_attention"]
    write_config(
        tmp_path,
        model_type="gemma3_text",
        hidden_size=8,
        num_hidden_layers=6,
        sliding_window=20,
        **{key: pattern if key == "layer_types" else 6},
    )
    tensors = {}
    for layer in range(6):
        name = f"model.layers.{layer}.self_attn"
        tensors |= {f"{name}.{part}_proj.weight": [4, 8] for part in "kv"}
        tensors[f"{name}.o_proj.weight"] = [8, 8]
    write_header(tmp_path, tensors)
    shape = target_shape(tmp_path, "bfloat16")
    peaks = Peaks(flops_per_second=1e15, bytes_per_second=1000, source="test")
    floors = floor_seconds(shape, 0, WORK, peaks)
    # 100 positions of context and 8 rows: one layer sees all, five see 20; 16 bytes each.
    assert floors[KernelClass.ATTENTION] == pytest.approx((108 + 5 * 20) * 16 / 900)


def test_codebooks_of_a_drafter_are_gathered_not_read(tmp_path: Path) -> None:
    write_header(tmp_path, {"fc.weight": [16, 8], "candidate_selector.successor_codebook": [32, 4]})
    assert drafter_parameters(tmp_path) == 128


def test_bad_folders_and_unknown_gpus_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no safetensors"):
        drafter_parameters(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(WorkloadError, match="header"):
        drafter_parameters(tmp_path)
    write_config(tmp_path, architectures=["Encoder"])
    write_header(tmp_path, {"encoder.weight": [8, 8]})
    with pytest.raises(WorkloadError, match="num_hidden_layers"):
        target_shape(tmp_path, "bfloat16")
    with pytest.raises(DeploymentError, match="GeForce"):
        gpu_peaks("NVIDIA GeForce RTX 2060")
    assert gpu_peaks("NVIDIA H200").bytes_per_second == 4.8e12


def test_cpu_peaks_are_measured() -> None:
    peaks = cpu_peaks(threads=1, seconds=0.05)
    assert peaks.flops_per_second > 1e8
    assert peaks.bytes_per_second > 1e8
    assert "measured" in peaks.source
    assert "times" not in peaks.source


@pytest.mark.parametrize(
    ("flags", "ratio"), [("amx_bf16 avx512_bf16", 16.0), ("avx512_bf16", 2.0), ("sse2", 1.0)]
)
def test_bf16_units_raise_the_peak(
    flags: str, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setattr(hardware, "_matrix_rate", lambda seconds: 1e11)
    peaks = cpu_peaks(threads=1, seconds=0.01, dtype="bfloat16")
    assert peaks.flops_per_second == ratio * 1e11
    assert ("times" in peaks.source) == (ratio > 1)
    assert cpu_peaks(threads=1, seconds=0.01).flops_per_second == 1e11

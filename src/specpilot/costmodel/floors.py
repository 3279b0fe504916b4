"""Byte floors per kernel class: the least time a step could take (paper section 3.1).

A floor is the larger of the FLOP time at 60% of peak dense throughput and the byte time at 90% of
peak bandwidth. Weights are read once a step, K/V and recurrent state once per request.
"""

from specpilot.core.measurement import KernelClass
from specpilot.core.numbers import NonNegative, Positive, PositiveInt
from specpilot.core.record import Record
from specpilot.costmodel.hardware import Peaks
from specpilot.costmodel.shapes import ModelShape

FLOP_SHARE = 0.6
BYTE_SHARE = 0.9


class StepWork(Record):
    """One decoding step of one request."""

    rows: Positive
    """Verified rows on average, the root included."""
    drafted: PositiveInt
    """Positions that the drafter computes."""
    context: NonNegative
    """Committed positions on average."""
    prompt_rows_per_step: NonNegative
    """Prompt tokens spread over the steps of their request."""
    prefills_per_step: NonNegative
    """1 / steps of a request: each prefill streams the weights once."""


def floor_seconds(
    shape: ModelShape, drafter_parameters: int, work: StepWork, peaks: Peaks
) -> dict[KernelClass, float]:
    """Seconds per step of every kernel class at its floor."""
    item, rows = shape.weight_bytes, work.rows
    weights = shape.matrix_parameters + shape.head_parameters
    head = shape.head_parameters
    activations = rows * shape.hidden * item * 4 * shape.layers
    seen = _seen_layers(shape, work.context + rows)
    flops_and_bytes = {
        KernelClass.TARGET_GEMM: (2.0 * weights * rows, float(weights * item)),
        KernelClass.ATTENTION: (
            4.0 * rows * seen * shape.attention_width,
            seen * shape.kv_bytes_per_token / max(shape.attention_layers, 1),
        ),
        KernelClass.RECURRENT: (2.0 * rows * shape.state_bytes, 2.0 * shape.state_bytes),
        KernelClass.DRAFTER: (
            2.0 * (drafter_parameters + head) * work.drafted,
            float((drafter_parameters + head) * item),
        ),
        KernelClass.PREFILL: (
            2.0 * shape.matrix_parameters * work.prompt_rows_per_step,
            weights * item * work.prefills_per_step,
        ),
        KernelClass.REST: (0.0, float(shape.vector_parameters * item + activations)),
    }
    return {
        name: max(
            flops / (FLOP_SHARE * peaks.flops_per_second),
            moved / (BYTE_SHARE * peaks.bytes_per_second),
        )
        for name, (flops, moved) in flops_and_bytes.items()
    }


def _seen_layers(shape: ModelShape, visible: float) -> float:
    """Visible positions summed over attention layers; a sliding layer sees its window."""
    window = min(visible, shape.window) if shape.window else visible
    full = shape.attention_layers - shape.sliding_layers
    return full * visible + shape.sliding_layers * window

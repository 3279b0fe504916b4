"""The work of a step is that of the measured system, not of the drafter's training."""

import json
from pathlib import Path

import numpy as np
import pytest

from specpilot.core.errors import WorkloadError
from specpilot.core.measurement import KernelClass, Profile
from specpilot.costmodel.measured import step_work
from specpilot.engines.base import Recording
from specpilot.loop.run import CeilingInputs


def inputs(rows: float, positions: int) -> CeilingInputs:
    recording = Recording(
        "r/0",
        np.arange(40, dtype=np.int64),
        np.zeros((39, 2, 2), dtype=np.int64),
        np.zeros((39, 2, 2, 2), dtype=np.float32),
    )
    profile = Profile(steps=10, seconds_per_step=0.1, by_class={KernelClass.REST: 0.1})
    return CeilingInputs(
        recordings=(recording,),
        profiles=(profile, profile),
        tau=3.0,
        rows=rows,
        positions=positions,
        autoregressive_seconds=0.05,
        step_seconds={},
        device="cpu",
        prompt_tokens=100.0,
    )


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {"block_size": 8}}))
    return tmp_path


def test_rows_are_those_that_were_verified(drafter: Path) -> None:
    stock = step_work(inputs(7.6, 0), drafter)
    assert (stock.rows, stock.drafted) == (7.6, 7)
    tree = step_work(inputs(31.2, 16), drafter)
    assert (tree.rows, tree.drafted) == (31.2, 16)


def test_prompts_are_spread_over_the_steps_of_their_requests(drafter: Path) -> None:
    work = step_work(inputs(8.0, 0), drafter)
    assert work.context == pytest.approx(20 + 100)
    assert work.prompt_rows_per_step == pytest.approx(100 * 2 / 20)
    assert work.prefills_per_step == pytest.approx(2 / 20)


def test_a_drafter_without_a_block_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WorkloadError, match=r"config\.json: names no block_size"):
        step_work(inputs(8.0, 0), tmp_path)

"""The training loop: AdamW, warm-up, cosine, clipping, checkpoints, resume."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from specengine.drafters.checkpoint import AnyNetwork
from specengine.drafters.eagle3_network import Eagle3Network
from specengine.errors import CheckpointError, NumericError
from specengine.train.batches import BatchSource
from specengine.train.block_losses import StepLoss, block_loss
from specengine.train.eagle3_loss import eagle3_loss
from specengine.train.generation import Stopwatch
from specengine.train.teacher import Teacher

_REPORT_EVERY = 50


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length and rates of a run.

    Attributes:
        steps: optimizer steps; with `seconds`, an upper limit.
        seconds: wall-clock box; the rate then follows the clock, so that the cosine ends in time.
        rate: peak learning rate.
        warmup: steps of linear warm-up.
        floor: last rate as a share of the peak.
        clip: largest gradient norm.
        save_every: steps between checkpoints.
        save_seconds: time after which one is due before that.
    """

    steps: int
    seconds: float | None = None
    rate: float = 1e-3
    warmup: int = 200
    floor: float = 0.02
    clip: float = 1.0
    save_every: int = 1000
    save_seconds: float = 300.0

    def rate_at(self, step: int, progress: float) -> float:
        """Learning rate; `progress` is the share of the run that is done."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.rate * warm * (self.floor + (1 - self.floor) * wave)


def train(
    network: AnyNetwork,
    teacher: Teacher,
    source: BatchSource,
    schedule: Schedule,
    checkpoint: Path,
    report: Callable[[str], None],
) -> int:
    """Train in place, continuing `checkpoint` where it exists; return the steps done in all.

    Without a time box, an interrupted and resumed run gives the parameters of an uninterrupted
    one (on a device whose kernels are deterministic).

    Raises:
        NumericError: the loss is not finite.
        CheckpointError: `checkpoint` is damaged, belongs to another network, or cannot be written.
    """
    cuda = teacher.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=cuda
    )
    mixed = teacher.model.dtype == torch.bfloat16
    step = _resume(checkpoint, network, optimizer)
    watch, unsaved = Stopwatch(schedule.seconds), Stopwatch(schedule.save_seconds)
    network.train()
    while step < schedule.steps and watch.left() > 0:
        progress = step / schedule.steps
        if schedule.seconds is not None:
            progress = max(progress, 1 - watch.left() / schedule.seconds)
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate_at(step, progress)
        with torch.autocast(teacher.device.type, torch.bfloat16, enabled=mixed):
            result = step_loss(network, teacher, source, step)
        optimizer.zero_grad(set_to_none=True)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), schedule.clip)
        optimizer.step()
        step += 1
        due = step % schedule.save_every == 0 or unsaved.left() <= 0
        # What is kept to go on from must be finite, so its loss is looked at first.
        if due or step % _REPORT_EVERY == 0 or step == schedule.steps:
            report(_line(step, progress, result, optimizer.param_groups[0]["lr"]))
        if due:
            _save(checkpoint, network, optimizer, step)
            unsaved = Stopwatch(schedule.save_seconds)
    _save(checkpoint, network, optimizer, step)
    network.eval()
    return step


def step_loss(network: AnyNetwork, teacher: Teacher, source: BatchSource, step: int) -> StepLoss:
    """The loss of a step's batch, by the network's kind."""
    if isinstance(network, Eagle3Network):
        return eagle3_loss(network, teacher, source.sequences(step).to(teacher.device))
    return block_loss(network, teacher, source.blocks(step).to(teacher.device))


def _line(step: int, progress: float, result: StepLoss, rate: float) -> str:
    if not math.isfinite(result.loss.item()):
        raise NumericError(
            f"loss is not finite at step {step}", where="training", fix="lower the learning rate"
        )
    parts = " ".join(f"{name} {value:.4f}" for name, value in result.parts.items())
    return f"step {step} done {progress:.1%} rate {rate:.2e} loss {result.loss:.4f} {parts}"


def _save(path: Path, network: AnyNetwork, optimizer: torch.optim.Optimizer, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state: dict[str, Any] = {
        "step": step, "network": network.state_dict(), "optimizer": optimizer.state_dict(),
    }  # fmt: skip
    try:
        torch.save(state, partial)
        partial.replace(path)
    except RuntimeError as error:
        # A full disk, as torch's writer says it.
        raise CheckpointError(
            "cannot be written whole", where=str(path),
            fix="free disk space, then repeat the command: it goes on from the checkpoint before",
        ) from error  # fmt: skip
    finally:
        partial.unlink(missing_ok=True)


def _resume(path: Path, network: AnyNetwork, optimizer: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    try:
        state = torch.load(path, map_location=network.fc.weight.device, weights_only=True)
        own, moments, step = state["network"], state["optimizer"], int(state["step"])
    except (RuntimeError, OSError, EOFError, LookupError, TypeError, UnpicklingError) as error:
        raise CheckpointError(
            "is no checkpoint of a training, or a damaged one", where=str(path),
            fix="remove it to begin anew, or train in a new folder",
        ) from error  # fmt: skip
    try:
        network.load_state_dict(own)
        optimizer.load_state_dict(moments)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"belongs to another network ({error!s:.200})", where=str(path),
            fix="train in a new folder",
        ) from error  # fmt: skip
    return step

"""One training run: a shape, token shards and a schedule in, a drafter's folder out."""

import json
import platform
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers

from specengine.drafters.checkpoint import AnyNetwork, read_network, write_network
from specengine.errors import CheckpointError, RequestError
from specengine.train.answers import Report
from specengine.train.batches import BatchPlan, BatchSource
from specengine.train.loop import Schedule, train
from specengine.train.shapes import DrafterShape, drafter_config, fresh_network, unused_token
from specengine.train.shards import TokenShard, merged, read_shard
from specengine.train.teacher import load_teacher


def fit(
    target: Path, data: list[Path], out: Path, shape: DrafterShape, plan: BatchPlan,
    schedule: Schedule, device: str, shard_bytes: int, report: Report,
    start: Path | None = None, mask_token: int | None = None,
) -> int:  # fmt: skip
    """Train a drafter and write its folder `out`; continue `out/checkpoint.pt` where it exists.

    Beside the weights stands `training.json`: what the run was given, and what it took; of a run
    that went on from a checkpoint, `seconds` are those of its last command.

    Args:
        target: Transformers folder.
        data: token shards.
        out: folder of the drafter.
        shape: its size.
        plan: how batches are drawn.
        schedule: length and rates.
        device: where to train.
        shard_bytes: largest file of weights.
        report: takes progress lines.
        start: a drafter folder whose weights a new run begins with.
        mask_token: row of the vocabulary that fills blocks; None looks for one that is not used.

    Returns:
        Steps done in all.

    Raises:
        CheckpointError: the target, `start` or a checkpoint to go on from does not fit, or one
            cannot be written.
        RequestError: `data` is damaged or of another target.
        OptionError: sizes that no drafter for this target has.
        NumericError: the loss is not finite.
        OSError: `out` cannot be written.
    """
    begun = time.monotonic()
    teacher = load_teacher(target, device)
    torch.backends.cuda.matmul.allow_tf32 = True
    shards = [read_shard(path) for path in data]
    for path, shard in zip(data, shards, strict=True):
        require_tokens(shard, teacher.config.vocab_size, path)
    source = BatchSource(merged(shards), plan)
    report(f"{len(source.shard)} sequences, {source.shard.answer_tokens} answer tokens")
    if shape.kind != "eagle3":
        mask = unused_token(teacher, source.shard) if mask_token is None else mask_token
        shape = replace(shape, mask_token_id=mask)
        held = ", which the answers hold" if mask in source.shard.token_set() else ""
        report(f"mask token {mask}{held}")
    config = drafter_config(teacher, shape)
    network = fresh_network(config, teacher, source.shard, plan.seed)
    if start is not None:
        begin_with(network, read_network(start, torch.float32, device), start)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    report(f"{config.kind}: {parameters} parameters")
    # Hours of training are not to end at a place where nothing can be written.
    out.mkdir(parents=True, exist_ok=True)
    steps = train(network, teacher, source, schedule, out / "checkpoint.pt", report)
    write_network(network, config, out, shard_bytes=shard_bytes)
    facts = {
        "kind": config.kind,
        "parameters": parameters,
        "steps": steps,
        "seconds": round(time.monotonic() - begun, 1),
        "shape": asdict(shape),
        "batches": asdict(plan),
        "schedule": asdict(schedule),
        "data": [
            {
                "shard": path.name,
                "sequences": len(shard),
                "answer_tokens": shard.answer_tokens,
                "sha256": shard.sha256(),
            }
            for path, shard in zip(data, shards, strict=True)
        ],
        **_coverage(network, source),
        "device": _device(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    (out / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return steps


def require_tokens(shard: TokenShard, vocabulary: int, path: Path) -> None:
    """Check that a target can read a shard.

    Raises:
        RequestError: the shard holds a token that the target does not have.
    """
    if len(shard.tokens) and not 0 <= shard.tokens.min() <= shard.tokens.max() < vocabulary:
        raise RequestError(
            f"holds tokens {shard.tokens.min()} to {shard.tokens.max()}, the target has "
            f"{vocabulary}",
            where=str(path),
            fix="give answers of this target",
        )


def begin_with(network: AnyNetwork, other: AnyNetwork, where: Path) -> None:
    """Copy the weights of a drafter of the same shape.

    Raises:
        CheckpointError: it has another shape, or is of another kind.
    """
    own, theirs = network.state_dict(), other.state_dict()
    wrong = sorted(
        name
        for name in own.keys() | theirs.keys()
        if name not in own or name not in theirs or own[name].shape != theirs[name].shape
    )
    if wrong:
        raise CheckpointError(
            f"is a {other.config.kind} drafter of another shape than the {network.config.kind} one "
            f"to be trained: tensor '{wrong[0]}' differs",
            where=str(where),
            fix="give --start a drafter of the same kind and sizes",
        )
    network.load_state_dict(theirs)


def _coverage(network: AnyNetwork, source: BatchSource) -> dict[str, float]:
    """Share of the answers' tokens that a reduced draft vocabulary reaches."""
    if network.d2t is None:
        return {}
    own = network.d2t.cpu() + torch.arange(len(network.d2t))
    return {"draft_vocabulary_share": round(source.shard.share_of(own.numpy()), 4)}


def _device(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device

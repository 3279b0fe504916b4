"""Batches of anchored blocks, a pure function of (seed, step): a resumed run sees the same data."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.errors import RequestError
from specengine.train.shards import TokenShard

_POOL = 32  # batches sorted by length together, to keep padding low


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Sequences with anchors.

    Attributes:
        tokens: int64 [S, n], right-padded with 0.
        starts: int64 [S, A], position of each anchor.
        labels: int64 [S, A, B - 1], the tokens after the anchor.
        weights: float32 [S, A, B - 1], 0 where a label lies beyond the sequence.
        previous: int64 [S, A, B - 1], the token before each label.
    """

    tokens: torch.Tensor
    starts: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    previous: torch.Tensor

    def to(self, device: torch.device) -> "BlockBatch":
        return BlockBatch(
            *(
                getattr(self, name).to(device, non_blocking=True)
                for name in ("tokens", "starts", "labels", "weights", "previous")
            )
        )


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How batches are drawn.

    Attributes:
        sequences: sequences per batch.
        rows: total block rows per sequence; a batch of B-row blocks has rows // B anchors.
        blocks: block lengths B, used in turn, step by step.
        decay: position k of a B-row block weighs exp(-(k - 1) / (decay * B)).
        seed: of everything random.
    """

    sequences: int
    rows: int
    blocks: tuple[int, ...]
    decay: float
    seed: int


class BatchSource:
    """Gives the batch of any step."""

    def __init__(self, shard: TokenShard, plan: BatchPlan) -> None:
        self.shard, self.plan = shard, plan
        lengths = np.diff(shard.offsets)
        # An anchor needs a token after it within the answer.
        self._usable = np.flatnonzero(lengths - shard.prompts >= 2)
        if not len(self._usable):
            raise RequestError(
                "holds no answer of two tokens", where="token shard", fix="answer more prompts"
            )
        self._lengths = lengths
        self.steps_per_epoch = max(1, len(self._usable) // plan.sequences)
        self._order: tuple[int, list[NDArray[np.int64]]] | None = None

    def batch(self, step: int) -> BlockBatch:
        epoch, index = divmod(step, self.steps_per_epoch)
        width = self.plan.blocks[step % len(self.plan.blocks)]
        rng = np.random.default_rng([self.plan.seed, 1, step])
        return block_batch(
            self.shard, self._epoch(epoch)[index], width, self.plan.rows // width,
            self.plan.decay, rng,
        )  # fmt: skip

    def _epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        if self._order is None or self._order[0] != epoch:
            rng = np.random.default_rng([self.plan.seed, 0, epoch])
            mixed = rng.permutation(self._usable)
            size, batches = self.plan.sequences, []
            for start in range(0, len(mixed), size * _POOL):
                pool = mixed[start : start + size * _POOL]
                pool = pool[np.argsort(self._lengths[pool], kind="stable")]
                batches += [pool[i : i + size] for i in range(0, len(pool), size)]
            whole = [batch for batch in batches if len(batch) == size] or batches
            self._order = (epoch, [whole[i] for i in rng.permutation(len(whole))])
        return self._order[1]


def block_batch(
    shard: TokenShard,
    members: NDArray[np.int64],
    width: int,
    anchors: int,
    decay: float,
    rng: np.random.Generator,
) -> BlockBatch:
    """Draw `anchors` blocks of `width` rows per sequence, without replacement where possible.

    Labels of a block form a contiguous prefix: they end with the sequence.
    """
    lengths = np.array([len(shard.sequence(i)) for i in members])
    padded = -(-int(lengths.max()) // 32) * 32
    tokens = np.zeros((len(members), padded + width), dtype=np.int64)
    starts = np.zeros((len(members), anchors), dtype=np.int64)
    used = np.zeros((len(members), anchors), dtype=bool)
    for row, index in enumerate(members):
        tokens[row, : lengths[row]] = shard.sequence(index)
        first, last = int(shard.prompts[index]), int(lengths[row]) - 1
        picked = rng.permutation(np.arange(first, last))[:anchors]
        starts[row, : len(picked)] = np.sort(picked)
        starts[row, len(picked) :] = first
        used[row, : len(picked)] = True
    offsets = np.arange(1, width)
    places = starts[..., None] + offsets
    rows = np.arange(len(members))[:, None, None]
    inside = (places < lengths[:, None, None]) & used[..., None]
    weights = np.exp(-(offsets - 1) / (decay * width)) * inside
    return BlockBatch(
        tokens=torch.from_numpy(tokens[:, :padded]),
        starts=torch.from_numpy(starts),
        labels=torch.from_numpy(tokens[rows, places]),
        weights=torch.from_numpy(weights.astype(np.float32)),
        previous=torch.from_numpy(tokens[rows, places - 1]),
    )

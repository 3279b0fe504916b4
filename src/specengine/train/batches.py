"""Batches, a pure function of (seed, step): a resumed run sees the same data.

Block drafters train on anchored blocks, EAGLE-3 on every position of whole sequences.
"""

from dataclasses import dataclass, fields

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
        return BlockBatch(*_moved(self, device))


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Whole sequences.

    Attributes:
        tokens: int64 [S, n], right-padded with 0.
        answers: bool [S, n], the tokens of the answers.
    """

    tokens: torch.Tensor
    answers: torch.Tensor

    def to(self, device: torch.device) -> "SequenceBatch":
        return SequenceBatch(*_moved(self, device))


def _moved(batch: BlockBatch | SequenceBatch, device: torch.device) -> list[torch.Tensor]:
    return [getattr(batch, part.name).to(device, non_blocking=True) for part in fields(batch)]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How batches are drawn.

    Attributes:
        sequences: sequences per batch.
        rows: total block rows per sequence; a batch of B-row blocks has rows // B anchors.
        blocks: tokens B of a block, the anchor included; used in turn, step by step.
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

    def blocks(self, step: int) -> BlockBatch:
        """The step's blocks."""
        width = self.plan.blocks[step % len(self.plan.blocks)]
        rng = np.random.default_rng([self.plan.seed, 1, step])
        return block_batch(
            self.shard, self._members(step), width, max(1, self.plan.rows // width),
            self.plan.decay, rng,
        )  # fmt: skip

    def sequences(self, step: int) -> SequenceBatch:
        """The step's sequences."""
        members = self._members(step)
        tokens, lengths = _padded(self.shard, members)
        places = np.arange(tokens.shape[1])
        answers = (places >= self.shard.prompts[members][:, None]) & (places < lengths[:, None])
        return SequenceBatch(torch.from_numpy(tokens), torch.from_numpy(answers))

    def _members(self, step: int) -> NDArray[np.int64]:
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._epoch(epoch)[index]

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
    tokens, lengths = _padded(shard, members, beyond=width)
    padded = tokens.shape[1] - width
    starts = np.zeros((len(members), anchors), dtype=np.int64)
    used = np.zeros((len(members), anchors), dtype=bool)
    for row, index in enumerate(members):
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


def _padded(
    shard: TokenShard, members: NDArray[np.int64], beyond: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens int64 [S, n + beyond], n a multiple of 32, and the sequences' lengths."""
    lengths = np.array([len(shard.sequence(i)) for i in members])
    padded = -(-int(lengths.max()) // 32) * 32
    tokens = np.zeros((len(members), padded + beyond), dtype=np.int64)
    for row, index in enumerate(members):
        tokens[row, : lengths[row]] = shard.sequence(index)
    return tokens, lengths

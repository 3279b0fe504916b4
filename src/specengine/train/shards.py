"""Token shards: prompts with the target's answers, as flat arrays, with a hash."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specengine.errors import RequestError


@dataclass(frozen=True, slots=True)
class TokenShard:
    """Sequences laid end to end.

    Attributes:
        tokens: int32 [total] (uint16 in files of small vocabularies), prompt then answer of each
            sequence.
        offsets: int64 [n + 1], where each sequence starts.
        prompts: int32 [n], tokens of each prompt.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompts: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.prompts.shape[0])

    def sequence(self, index: int) -> NDArray[np.int32]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def answer_tokens(self) -> int:
        return int(self.tokens.shape[0] - self.prompts.sum())

    def token_set(self) -> frozenset[int]:
        """Every token that occurs."""
        return frozenset(np.unique(self.tokens).tolist())

    def frequent_tokens(self, count: int, vocabulary: int) -> NDArray[np.int64]:
        """The `count` most frequent tokens of the answers, in the order of their ids.

        Equally frequent ones are taken from the lowest id.
        """
        seen = np.bincount(self._answered(), minlength=vocabulary)
        return np.sort(np.argsort(-seen, kind="stable")[:count])

    def share_of(self, tokens: NDArray[np.int64]) -> float:
        """Share of the answers' tokens that are among `tokens`."""
        return float(np.isin(self._answered(), tokens).mean())

    def _answered(self) -> NDArray[np.int32]:
        lengths = np.diff(self.offsets)
        places = np.arange(len(self.tokens)) - np.repeat(self.offsets[:-1], lengths)
        return self.tokens[places >= np.repeat(self.prompts, lengths)]

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self.tokens, self.offsets, self.prompts):
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def pack(pairs: list[tuple[list[int], list[int]]]) -> TokenShard:
    """Lay (prompt, answer) pairs end to end."""
    flat = [token for prompt, answer in pairs for token in (*prompt, *answer)]
    lengths = [len(prompt) + len(answer) for prompt, answer in pairs]
    return TokenShard(
        tokens=np.array(flat, dtype=np.int32),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        prompts=np.array([len(prompt) for prompt, _ in pairs], dtype=np.int32),
    )


def write_shard(shard: TokenShard, path: Path) -> None:
    """Write one compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as handle:
        small = len(shard.tokens) > 0 and int(shard.tokens.max()) < 2**16
        tokens = shard.tokens.astype(np.uint16 if small else np.int32)
        np.savez_compressed(handle, tokens=tokens, offsets=shard.offsets, prompts=shard.prompts)


def read_shard(path: Path) -> TokenShard:
    """Read one file.

    Raises:
        RequestError: the file is missing or not a shard.
    """
    try:
        with np.load(path) as table:
            return TokenShard(table["tokens"].astype(np.int32), table["offsets"], table["prompts"])
    except (OSError, KeyError, ValueError) as error:
        raise RequestError(
            f"is not a token shard ({error})", where=str(path),
            fix="write it with `python -m specengine.train answers`",
        ) from error  # fmt: skip


def merged(shards: list[TokenShard]) -> TokenShard:
    """Shards laid end to end."""
    starts = np.cumsum([0, *(len(shard.tokens) for shard in shards)])
    return TokenShard(
        tokens=np.concatenate([shard.tokens for shard in shards]),
        offsets=np.concatenate(
            [
                [0],
                *(shard.offsets[1:] + start for shard, start in zip(shards, starts, strict=False)),
            ]
        ).astype(np.int64),
        prompts=np.concatenate([shard.prompts for shard in shards]),
    )

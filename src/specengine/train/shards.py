"""Token shards: prompts with the target's answers, as flat arrays, with a hash."""

import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

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
    """Write one compressed file, which appears whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    small = len(shard.tokens) > 0 and int(shard.tokens.max()) < 2**16
    tokens = shard.tokens.astype(np.uint16 if small else np.int32)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as handle:
            np.savez_compressed(handle, tokens=tokens, offsets=shard.offsets, prompts=shard.prompts)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_shard(path: Path) -> TokenShard:
    """Read one file.

    Raises:
        RequestError: the file is missing, damaged or not a shard.
    """
    try:
        with np.load(path) as table:
            shard = TokenShard(table["tokens"].astype(np.int32), table["offsets"], table["prompts"])
        _check(shard)
    except (OSError, KeyError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise RequestError(
            f"is not a token shard ({error or 'it is empty'})", where=str(path),
            fix="write it with `python -m specengine.train answers`",
        ) from error  # fmt: skip
    return shard


def _check(shard: TokenShard) -> None:
    tokens, offsets, prompts = shard.tokens, shard.offsets, shard.prompts
    if not (tokens.ndim == offsets.ndim == prompts.ndim == 1 and len(offsets) == len(prompts) + 1):
        raise ValueError("arrays of other shapes")
    if not {offsets.dtype.kind, prompts.dtype.kind} <= set("iu"):
        raise ValueError("places that are no whole numbers")
    lengths = np.diff(offsets.astype(np.int64))
    ends = int(offsets[0]), int(offsets[-1])
    if ends != (0, len(tokens)) or (prompts < 0).any() or (lengths < prompts).any():
        raise ValueError("sequences that do not lie end to end")


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

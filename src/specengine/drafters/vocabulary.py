"""Embedding, head and token map of a drafter: its own where the checkpoint has them, else borrowed.

A head over fewer tokens than the target's comes with `d2t`: for each draft id the distance to its
target id (an offset, not an id).
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from specengine.drafters.records import DraftConfig
from specengine.errors import CheckpointError


class Embedding(Protocol):
    """A table of token embeddings."""

    weight: torch.Tensor


class DraftTarget(Protocol):
    """What a drafter borrows from the target."""

    embed_tokens: Embedding

    def head(self, hidden: torch.Tensor, /) -> torch.Tensor:
        """Hidden states [n, d] to raw logits [n, V]: the drafter's config names the transforms."""
        ...


def add_vocabulary(network: nn.Module, config: DraftConfig) -> None:
    """Give a network the modules that its checkpoint brings: embedding, head, token map."""
    width, vocabulary = config.hidden_size, config.vocab_size
    network.embed_tokens = nn.Embedding(vocabulary, width) if config.own_embedding else None
    size = config.draft_vocab_size
    own_head = config.own_head or (size is not None and not config.tied_head)
    network.lm_head = nn.Linear(width, size or vocabulary, bias=False) if own_head else None
    offsets = None if size is None else torch.zeros(size, dtype=torch.int64)
    network.register_buffer("d2t", offsets)


class DraftVocabulary:
    """The token side of one drafter on one target.

    Args:
        network: a network after `add_vocabulary`.
        target: lends what the network does not have.
        config: the network's.
    """

    def __init__(self, network: nn.Module, target: DraftTarget, config: DraftConfig) -> None:
        self._network, self._target = network, target
        self._tied = config.tied_head
        self.offsets: torch.Tensor | None = network.d2t
        self.size = config.draft_vocab_size or config.vocab_size

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [...] to embeddings [..., d], without the scale that some targets apply."""
        return F.embedding(tokens, (self._network.embed_tokens or self._target.embed_tokens).weight)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [n, d] to logits [n, size] over draft ids."""
        if self._network.lm_head is not None:
            return self._network.lm_head(hidden)
        if self._tied:
            return F.linear(hidden, self._network.embed_tokens.weight)
        return self._target.head(hidden)

    def target_ids(self, ids: torch.Tensor) -> torch.Tensor:
        """Draft ids [...] as the target's."""
        return ids if self.offsets is None else ids + self.offsets[ids]

    def unread_bytes(self) -> int:
        """Bytes of the embedding, of which a call reads a few rows."""
        own = self._network.embed_tokens
        return 0 if own is None or self._tied else own.weight.nbytes


def reachable_tokens(offsets: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """`t2d`, bool [vocabulary]: the target's tokens that `d2t`, int64 [draft], reaches."""
    reachable = torch.zeros(vocabulary, dtype=torch.bool)
    reachable[torch.arange(len(offsets)) + offsets] = True
    return reachable


def check_map(
    offsets: torch.Tensor, reachable: torch.Tensor | None, vocabulary: int, where: str
) -> None:
    """Check a token map, so that no two candidates of a draft are the same token.

    Args:
        offsets: int64 [draft], `d2t`.
        reachable: bool [vocabulary], `t2d`, or None where the checkpoint has none.
        vocabulary: the target's size.
        where: names the checkpoint in errors.

    Raises:
        CheckpointError: an id outside the target's, named twice, or not in `t2d`.
    """
    fix = "download the checkpoint again: d2t holds offsets, t2d marks the tokens they reach"
    ids = torch.arange(len(offsets)) + offsets.cpu()
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        wrong = int(ids[(ids < 0) | (ids >= vocabulary)][0])
        raise CheckpointError(
            f"tensor 'd2t' maps to token {wrong} of {vocabulary}", where=where, fix=fix
        )
    if len(ids.unique()) != len(ids):
        raise CheckpointError("tensor 'd2t' maps two draft ids to one token", where=where, fix=fix)
    if reachable is not None and not torch.equal(
        ids.sort().values, reachable.cpu().bool().nonzero().flatten()
    ):
        raise CheckpointError("tensors 'd2t' and 't2d' disagree", where=where, fix=fix)

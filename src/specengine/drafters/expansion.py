"""EAGLE-2's tree on a drafter's own steps: expand the likeliest nodes, then keep the best of all.

Each step expands the `branches` likeliest nodes of the level before into as many children each. The
tree is made of the likeliest nodes of all levels. A child is never likelier than its parent, and
the order puts the parent first where they are equal, so the chosen nodes are prefix-closed, and
those of a smaller budget come first.
"""

from typing import Protocol

import numpy as np
import torch

from specengine.drafters.candidates import top_candidates
from specengine.drafters.vocabulary import DraftVocabulary
from specengine.trees import DraftTree


class Stepper(Protocol):
    """The forwards of one draft; see `specengine.drafters.eagle3.Steps`."""

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits float32 [1, size] and features [1, d] after the anchor."""
        ...

    def next(
        self, tokens: torch.Tensor, hidden: torch.Tensor, parents: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [k, size] and features [k, d] after k tokens below rows of the step before."""
        ...


def grown_tree(
    steps: Stepper,
    vocabulary: DraftVocabulary,
    anchor: int,
    positions: int,
    nodes: int,
    branches: int,
) -> DraftTree:
    """Grow a tree of at most `nodes` rows, the root included, and `positions` levels below it.

    Raises:
        NumericError: non-finite logits.
    """
    tokens, scores = [np.array([anchor])], [np.zeros(1, dtype=np.float32)]
    parents, depths = [np.array([-1])], [np.zeros(1, dtype=np.int64)]
    frontier = np.zeros(1, dtype=np.int64)
    logits, hidden = steps.first()
    total = torch.zeros(1, device=logits.device)
    grown = 1
    for depth in range(1, positions + 1):
        gain, ids = top_candidates(logits.log_softmax(-1), branches)
        level = (total[:, None] + gain.clamp(max=0.0)).flatten()
        targets = vocabulary.target_ids(ids).flatten()
        tokens.append(targets.cpu().numpy())
        scores.append(level.cpu().numpy())
        parents.append(frontier.repeat(branches))
        depths.append(np.full(len(level), depth))
        if depth == positions:
            break
        total, chosen = torch.sort(level, descending=True, stable=True)
        total, chosen = total[:branches], chosen[:branches]
        logits, hidden = steps.next(targets[chosen], hidden, chosen // branches)
        frontier = grown + chosen.cpu().numpy()
        grown += len(level)
    return _best(
        np.concatenate(tokens), np.concatenate(parents), np.concatenate(depths),
        np.concatenate(scores), nodes,
    )  # fmt: skip


def _best(
    tokens: np.ndarray, parents: np.ndarray, depths: np.ndarray, scores: np.ndarray, nodes: int
) -> DraftTree:
    """The likeliest `nodes` nodes, the root among them, parents first."""
    order = np.lexsort((np.arange(len(tokens)), depths, -scores))[:nodes]
    place = np.full(len(tokens), -1)
    place[order] = np.arange(len(order))
    return DraftTree(
        tokens=tokens[order].astype(np.int64),
        parent=np.where(parents[order] < 0, -1, place[parents[order]]).astype(np.int32),
        depth=depths[order].astype(np.int32),
        logp=scores[order].astype(np.float32),
    )

"""DSpark: a bias from the previous token as a lattice, and drafts cut where confidence ends.

A bias that depends on the previous token alone (`vanilla`), or on it and the row (`gated`), scores
every pair of candidates. One that carries a state (`rnn`) belongs to a path, and its draft is a
lattice of one candidate per position: a chain.

Candidates are the largest scores either before the bias or after it. After it, the bias is that of
the greedy path, which costs one product by the second factor per position and keeps the published
greedy chain inside the lattice; before it, the chain is lost wherever the bias lifts a token from
outside the unary's best. Hence `biased` is the default.
"""

from typing import Literal

import numpy as np
import torch

from specengine.drafters.base import DeviceLattice
from specengine.drafters.block import BlockDrafter, ContextCache
from specengine.drafters.candidates import top_candidates
from specengine.drafters.driven import as_lattice
from specengine.drafters.network import DSparkNetwork
from specengine.drafters.vocabulary import DraftTarget
from specengine.errors import NumericError, OptionError
from specengine.lattice import Lattice
from specengine.trees.chain import build_chain

CANDIDATES = 16
"""Candidates per position, as many as DFlash2's selector looks at (paper section 4.2)."""
Choice = Literal["biased", "unary"]


class DSparkDrafter(BlockDrafter):
    """A `specengine.drafters.base.Drafter` and `ConfidentDrafter`.

    Args:
        network: the loaded network.
        target: lends what the network does not have.
        candidates: choose them after the bias or before it; see the module.
    """

    kind = "dspark"
    network: DSparkNetwork

    def __init__(
        self, network: DSparkNetwork, target: DraftTarget, candidates: Choice = "biased"
    ) -> None:
        super().__init__(network, target)
        self.candidates = candidates

    @property
    def candidates_per_position(self) -> int:
        """See `DeviceDrafter`; an `rnn` head's draft is a chain."""
        chain = self.network.markov_head.head_type == "rnn"
        return 1 if chain else min(CANDIDATES, self.vocabulary.size)

    @torch.inference_mode()
    def scored(self, hidden: torch.Tensor, anchor: int) -> DeviceLattice:
        """Candidates and biased scores of rows [D, d]; see `Drafter.draft`.

        Raises:
            NumericError: non-finite logits.
        """
        unary = self.unary(hidden)
        count = self.candidates_per_position
        head = self.network.markov_head
        if head.head_type == "rnn":
            ids = self._walk(unary, hidden, anchor, 1)
            scores = unary.new_zeros(len(hidden), 1, 1)
            return as_lattice(self.vocabulary.target_ids(ids), scores, self.kind)
        if self.candidates == "unary":
            ids = top_candidates(unary, count)[1]
        else:
            ids = self._walk(unary, hidden, anchor, count)
        tokens = self.vocabulary.target_ids(ids)
        previous = torch.cat((torch.full_like(tokens[:1], anchor), tokens[:-1]))
        rows = hidden[:, None].expand(-1, count, -1)
        latent, _ = head.latent(previous, rows, head.new_state(rows))
        bias = latent.float() @ head.markov_w2.weight[ids].float().transpose(-1, -2)
        return as_lattice(tokens, unary.gather(1, ids)[:, None, :] + bias, self.kind)

    def draft_confident(
        self, state: ContextCache, anchor: int, positions: int, confidence: float
    ) -> Lattice:
        """See `ConfidentDrafter.draft_confident`; the estimates are those of the greedy chain.

        Raises:
            OptionError: the checkpoint has no confidence head.
            NumericError: non-finite logits or estimates.
        """
        self.require_confidence()
        hidden = self.predicting_rows(state, anchor, positions)
        lattice = self.lattice(hidden, anchor)
        chain = build_chain(lattice, anchor, positions).tokens
        estimates = self.confidence(hidden, torch.from_numpy(chain).to(self.device))
        low = np.flatnonzero(estimates.cpu().numpy() < confidence)
        kept = int(low[0]) if len(low) else positions
        return Lattice(ids=lattice.ids[:kept], edge=lattice.edge[:kept])

    @torch.inference_mode()
    def confidence(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Chance of acceptance, float32 [D], of rows [D, d] after tokens int64 [D].

        Raises:
            NumericError: an estimate is not finite.
        """
        head = self.network.confidence_head
        assert head is not None
        estimates = head(hidden, self.network.markov_head.markov_w1(previous))
        if not bool(torch.isfinite(estimates).all()):
            raise NumericError(
                "estimates acceptances that are not finite", where="drafter dspark",
                fix="run it in bfloat16 or float32 and check its weights",
            )  # fmt: skip
        return estimates

    def require_confidence(self) -> None:
        """See `ConfidentDrafter.require_confidence`."""
        if self.network.confidence_head is None:
            raise OptionError(
                "is set, and this drafter has no confidence head",
                where="option 'confidence'",
                fix="leave it at 0, or use a DSpark drafter that has one",
            )

    def looked_up_bytes(self) -> int:
        """The first factor's."""
        return self.network.markov_head.markov_w1.weight.nbytes

    def _walk(
        self, unary: torch.Tensor, hidden: torch.Tensor, anchor: int, count: int
    ) -> torch.Tensor:
        """Draft ids [D, count]: at each position the best after the best before it."""
        head = self.network.markov_head
        previous = torch.tensor(anchor, device=unary.device)
        state, rows = head.new_state(hidden[0]), []
        for position in range(len(hidden)):
            latent, state = head.latent(previous, hidden[position], state)
            scores = unary[position] + head.markov_w2(latent).float()
            ids = top_candidates(scores[None], count)[1][0]
            rows.append(ids)
            previous = self.vocabulary.target_ids(ids[0])
        return torch.stack(rows)

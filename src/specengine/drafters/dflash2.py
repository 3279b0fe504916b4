"""DFlash2: candidates by the unary scores, edges by the selector."""

import torch

from specengine.drafters.block import BlockDrafter
from specengine.drafters.candidates import top_candidates
from specengine.drafters.driven import as_lattice
from specengine.drafters.network import DFlash2Network
from specengine.lattice import Lattice


class DFlash2Drafter(BlockDrafter):
    """A `specengine.drafters.base.Drafter`."""

    kind = "dflash2"
    network: DFlash2Network

    @torch.inference_mode()
    def lattice(self, hidden: torch.Tensor, anchor: int) -> Lattice:
        """Candidates and selector scores of rows [D, d]; see `Drafter.draft`.

        Raises:
            NumericError: non-finite logits.
        """
        selector = self.network.candidate_selector
        top, ids = top_candidates(self.unary(hidden), self.network.config.selector_top_k)
        previous = torch.cat((torch.full_like(ids[:1], anchor), ids[:-1]))
        scores = top[:, None, :] + selector.pair_scores(hidden, previous, ids)
        return as_lattice(ids, scores, self.kind)

    def looked_up_bytes(self) -> int:
        """The codebooks'."""
        selector = self.network.candidate_selector
        return selector.predecessor_codebook.nbytes + selector.successor_codebook.nbytes

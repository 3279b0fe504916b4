"""DFlash2: candidates by the unary scores, edges by the selector."""

import torch

from specengine.drafters.base import DeviceLattice
from specengine.drafters.block import BlockDrafter
from specengine.drafters.candidates import top_candidates
from specengine.drafters.driven import as_lattice
from specengine.drafters.network import DFlash2Network


class DFlash2Drafter(BlockDrafter):
    """A `specengine.drafters.base.Drafter`."""

    kind = "dflash2"
    network: DFlash2Network

    @property
    def candidates_per_position(self) -> int:
        """See `DeviceDrafter`."""
        return self.network.config.selector_top_k

    @torch.inference_mode()
    def scored(self, hidden: torch.Tensor, anchor: int) -> DeviceLattice:
        """Candidates and selector scores of rows [D, d]; see `Drafter.draft`.

        Raises:
            NumericError: non-finite logits.
        """
        selector = self.network.candidate_selector
        top, ids = top_candidates(self.unary(hidden), self.candidates_per_position)
        previous = torch.cat((torch.full_like(ids[:1], anchor), ids[:-1]))
        scores = top[:, None, :] + selector.pair_scores(hidden, previous, ids)
        return as_lattice(ids, scores, self.kind)

    def looked_up_bytes(self) -> int:
        """The codebooks'."""
        selector = self.network.candidate_selector
        return selector.predecessor_codebook.nbytes + selector.successor_codebook.nbytes

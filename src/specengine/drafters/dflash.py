"""DFlash: the marginal of each position, whatever stands before it.

A marginal says nothing about the token before, so every parent sees the same row of the lattice.
"""

import torch

from specengine.drafters.base import DeviceLattice
from specengine.drafters.block import BlockDrafter
from specengine.drafters.candidates import top_candidates
from specengine.drafters.driven import as_lattice

CANDIDATES = 16
"""Candidates per position, as many as DFlash2's selector looks at."""


class DFlashDrafter(BlockDrafter):
    """A `specengine.drafters.base.Drafter`."""

    kind = "dflash"

    @property
    def candidates_per_position(self) -> int:
        """See `DeviceDrafter`."""
        return min(CANDIDATES, self.vocabulary.size)

    @torch.inference_mode()
    def scored(self, hidden: torch.Tensor, anchor: int) -> DeviceLattice:
        """The most probable tokens of each row; see `Drafter.draft`.

        Raises:
            NumericError: non-finite logits.
        """
        count = self.candidates_per_position
        top, ids = top_candidates(self.unary(hidden), count)
        scores = top[:, None, :].expand(-1, count, -1)
        return as_lattice(self.vocabulary.target_ids(ids), scores, self.kind)

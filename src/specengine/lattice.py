"""The lattice of one drafter call: candidates per position and parent-conditioned edge scores.

Tree builders and the exact replay see nothing of a drafter but this record (paper section 2.2).
Pure numpy, so that the judge can read it without torch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specengine.errors import NumericError


@dataclass(frozen=True, slots=True)
class Lattice:
    """Candidates and log-probabilities of D drafted positions with K candidates each.

    Attributes:
        ids: int64 [D, K], candidate token ids, distinct within a row.
        edge: float32 [D, K, K] in nats; `edge[t, a, b]` is log p(candidate b at position t given
            candidate a at position t - 1), normalised over b. Position 0 depends on the anchor
            only, so all rows of `edge[0]` are equal.
    """

    ids: NDArray[np.int64]
    edge: NDArray[np.float32]

    @property
    def positions(self) -> int:
        """D, the number of drafted positions."""
        return int(self.ids.shape[0])

    @property
    def candidates(self) -> int:
        """K, the number of candidates per position."""
        return int(self.ids.shape[1])

    def check(self) -> "Lattice":
        """Return self, or raise.

        Raises:
            NumericError: shapes disagree, a score is not finite, or a row names a token twice.
        """
        positions, candidates = self.ids.shape
        if positions == 0 or candidates == 0:
            raise NumericError("is empty", where="lattice", fix="draft at least one position")
        if self.edge.shape != (positions, candidates, candidates):
            raise NumericError(
                f"edge has shape {self.edge.shape} for ids of shape {self.ids.shape}",
                where="lattice",
                fix="give one [K, K] matrix per position",
            )
        if not np.isfinite(self.edge).all():
            raise NumericError(
                "holds non-finite scores",
                where="lattice",
                fix="check the drafter's weights and dtype (float16 overflows on real drafters)",
            )
        ordered = np.sort(self.ids, axis=1)
        if candidates > 1 and bool((ordered[:, 1:] == ordered[:, :-1]).any()):
            raise NumericError(
                "names a candidate twice in one position",
                where="lattice",
                fix="select candidates without repetition",
            )
        return self

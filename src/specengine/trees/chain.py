"""The greedy chain: stock's draft, the likeliest candidate after each pick."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Chain:
    """`build_chain` as a builder; nested."""

    nested: ClassVar[bool] = True

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """The chain of at most `nodes` rows.

        Raises:
            OptionError: `nodes` is below 1.
        """
        return build_chain(lattice, anchor, nodes)


def build_chain(lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
    """Walk the lattice greedily; ties go to the lowest slot.

    The chain has min(nodes, positions + 1) rows, the root included.

    Raises:
        OptionError: `nodes` is below 1.
    """
    require_root(nodes)
    length = min(nodes, lattice.positions + 1)
    tokens = np.empty(length, dtype=np.int64)
    logp = np.zeros(length, dtype=np.float32)
    tokens[0] = anchor
    slot, total = 0, 0.0
    for position in range(length - 1):
        row = lattice.edge[position, slot]
        slot = int(row.argmax())
        # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
        total += min(float(row[slot]), 0.0)
        tokens[position + 1] = lattice.ids[position, slot]
        logp[position + 1] = total
    depth = np.arange(length, dtype=np.int32)
    return DraftTree(tokens=tokens, parent=depth - 1, depth=depth, logp=logp)

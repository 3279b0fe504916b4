"""Oracle: the target's own continuation while the lattice holds it (paper section 3.1).

Knows the answer, so it bounds every other tree and serves replay only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from specengine.lattice import Lattice
from specengine.trees.base import require_root
from specengine.trees.draft_tree import DraftTree, tree_of_slots


@dataclass(frozen=True, slots=True)
class Oracle:
    """A chain of the right candidates; nested.

    Attributes:
        continuation: the target's tokens after the anchor.
    """

    nested: ClassVar[bool] = True
    continuation: Sequence[int]

    def __call__(self, lattice: Lattice, anchor: int, nodes: int) -> DraftTree:
        """Follow the continuation to its first token that is no candidate.

        Raises:
            OptionError: `nodes` is below 1.
        """
        require_root(nodes)
        slots = [0]
        for row, token in zip(lattice.ids[: nodes - 1].tolist(), self.continuation, strict=False):
            if token not in row:
                break
            slots.append(row.index(token))
        count = len(slots)
        return tree_of_slots(lattice, anchor, slots, range(-1, count - 1), range(count))

"""Rows of a pass whose shapes and addresses never change, so that it can be captured and replayed.

`Rows` slices the cache by Python integers. Here the committed length, the tokens and the tree are
numbers in one device tensor, and every row attends to a fixed span of slots under a mask. Unwritten
slots of the span must hold finite numbers: a zero weight times NaN is NaN.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.models.rows import KeyView
from specengine.trees.draft_tree import DraftTree
from specengine.verify.gated_delta import Level, levels


class StaticRows:
    """`count` rows over the first `span` slots of a cache.

    Args:
        count: rows of the pass, padding included.
        span: slots that are attended to; length + count never exceeds it.
        groups: query heads per key head.
        dtype: dtype of the additive masks.
        device: where `inputs` lives.

    Attributes:
        inputs: int64 [1 + 2 * count + count * count]: length, tokens, depths, ancestors row by row.
    """

    parent = None
    whole = False
    chain = True
    """A recurrent layer walks the rows as one path; branching trees need `Rows` there."""

    def __init__(
        self, count: int, span: int, *, groups: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.count = count
        self.span = span
        self.groups = groups
        self.dtype = dtype
        self.inputs = torch.zeros(1 + 2 * count + count * count, dtype=torch.int64, device=device)
        self.length, self.tokens, depth, ancestors = self.inputs.split(
            [1, count, count, count * count]
        )
        self.depth = depth
        self._ancestors = ancestors.view(count, count)
        self._own = torch.arange(count, device=device)
        self._slots = torch.arange(span, device=device)
        self._levels = levels(range(-1, count - 1), device)
        self._views: dict[int | None, KeyView] = {}

    def begin(self) -> None:
        """Forget the masks of the pass before; they are computed anew by the first layer."""
        self._views = {}

    @property
    def slots(self) -> torch.Tensor:
        """int64 [count], where the rows' keys and values go."""
        return self.length + self._own

    def positions(self) -> torch.Tensor:
        """int64 [1, count], absolute positions for the rotary embedding."""
        return (self.depth + self.length)[None]

    def levels(self) -> list[Level]:
        """Rows by depth, for layers that recur along root paths."""
        return self._levels

    def visible(self, window: int | None, first: int) -> torch.Tensor:
        """bool [count, span], see `visible_keys`; `first` is always 0."""
        row_of_slot = self._slots - self.length
        committed = row_of_slot < 0
        own = ~committed & (row_of_slot < self.count)
        row = row_of_slot.clamp(0, self.count - 1)
        seen = committed | (own & self._ancestors[:, row].bool())
        if window is None:
            return seen
        key_depth = torch.where(committed, row_of_slot, self.depth[row])
        return seen & (self.depth[:, None] - key_depth[None, :] < window)

    def view(self, window: int | None) -> KeyView:
        """Every slot of the span, masked; one mask per window and pass."""
        view = self._views.get(window)
        if view is None:
            visible = self.visible(window, 0)
            mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
            mask = mask.masked_fill(~visible, float("-inf")).repeat(self.groups, 1)
            view = self._views[window] = KeyView(0, mask, causal=False, folded=True)
        return view


def pack(length: int, tree: DraftTree, count: int) -> NDArray[np.int64]:
    """`StaticRows.inputs` of a tree, on the host.

    Rows behind the tree's own are padding: they hold token 0, stand at the root's depth and see the
    committed positions and themselves.
    """
    size = len(tree)
    tokens, depth = np.zeros((2, count), dtype=np.int64)
    tokens[:size], depth[:size] = tree.tokens, tree.depth
    ancestors = np.eye(count, dtype=np.int64)
    ancestors[:size, :size] = tree.ancestors()
    return np.concatenate([[length], tokens, depth, ancestors.ravel()])

"""The rows of one forward pass: positions, parents, and what each row may see.

Built once per pass and read by every layer, so that no layer repeats work that depends on the
tree alone.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from specengine.trees.draft_tree import DraftTree
from specengine.verify.gated_delta import Level, levels
from specengine.verify.tree_attention import visible_keys

FOLD_ROWS = 256
"""Up to this many rows, repeating the mask per query head costs less than repeating the keys."""


@dataclass(frozen=True, slots=True)
class KeyView:
    """The keys that the rows of one pass attend to under one window."""

    first: int
    """First slot that any row can see; earlier slots are sliced away."""
    mask: torch.Tensor | None
    """Additive [n, length - first + n] in the model's dtype, repeated once per folded query head
    ([groups * n, ...]) when `folded`; None when nothing is masked or `causal` says it all."""
    causal: bool
    """Row i sees slots first .. first + i and nothing else."""
    folded: bool
    """Query heads that share a key head travel as extra rows of it."""


@dataclass(slots=True)
class Rows:
    """n rows after `length` committed positions.

    Attributes:
        length: committed positions before the rows.
        count: n.
        groups: query heads per key head.
        depth: int64 [n], a row's distance from row 0; its position is `length + depth`.
        parent: parents of the rows as a list, or None for a chain (row i follows row i - 1).
        whole: a prompt's chain, which is committed whole; any path of other rows can be.
        ancestors: bool [n, n], `[i, j]` true when j is i or an ancestor of i.
        dtype: dtype of the additive masks.
    """

    length: int
    count: int
    groups: int
    depth: torch.Tensor
    parent: list[int] | None
    whole: bool
    ancestors: torch.Tensor | None
    dtype: torch.dtype
    views: dict[int | None, KeyView] = field(default_factory=dict)
    by_depth: list[Level] | None = None

    @classmethod
    def build(
        cls,
        length: int,
        count: int,
        tree: DraftTree | None,
        *,
        groups: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "Rows":
        """Rows of a tree, or of a chain when `tree` is None.

        A tree without branches is treated as the chain it is.
        """
        if tree is None or np.array_equal(tree.parent[1:], np.arange(count - 1)):
            depth = torch.arange(count, device=device)
            return cls(length, count, groups, depth, None, tree is None, None, dtype)
        depth = torch.as_tensor(tree.depth, dtype=torch.int64, device=device)
        ancestors = torch.as_tensor(tree.ancestors(), device=device)
        return cls(length, count, groups, depth, tree.parent.tolist(), False, ancestors, dtype)

    @property
    def chain(self) -> bool:
        """Whether row i follows row i - 1 throughout."""
        return self.parent is None

    def positions(self) -> torch.Tensor:
        """int64 [1, n], absolute positions for the rotary embedding."""
        return (self.depth + self.length)[None]

    def levels(self) -> list[Level]:
        """Rows by depth, for layers that recur along root paths."""
        if self.by_depth is None:
            parent = range(-1, self.count - 1) if self.parent is None else self.parent
            self.by_depth = levels(parent, self.depth.device)
        return self.by_depth

    def visible(self, window: int | None, first: int) -> torch.Tensor:
        """bool [n, length - first + n], see `visible_keys`."""
        ancestors = self.ancestors
        if ancestors is None:
            ancestors = self.depth[:, None] >= self.depth[None, :]
        return visible_keys(self.length, self.depth, ancestors, window, first)

    def view(self, window: int | None) -> KeyView:
        """Visible keys under a window, counted in positions; None is full attention."""
        view = self.views.get(window)
        if view is None:
            view = self.views[window] = self._view(window)
        return view

    def _view(self, window: int | None) -> KeyView:
        first = 0 if window is None else max(0, self.length - window + 1)
        folded = self.count <= FOLD_ROWS
        if self.chain and self.count == 1:
            return KeyView(first, None, causal=False, folded=folded)
        if self.chain and self.length == first and (window is None or self.count <= window):
            return KeyView(first, None, causal=True, folded=False)
        visible = self.visible(window, first)
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=visible.device)
        mask.masked_fill_(~visible, float("-inf"))
        if folded and self.groups > 1:
            mask = mask.repeat(self.groups, 1)
        return KeyView(first, mask, causal=False, folded=folded)

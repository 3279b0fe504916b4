"""Which keys a verified row may see, and the plain attention that every faster one must equal.

A forward pass over a target holds `length` committed positions (slot j holds position j) and n rows
in slots length .. length + n - 1. A row's position is `length + depth`, which differs from its slot
as soon as the tree branches, so every window is counted in positions (paper section 2.2).
"""

import torch


def visible_keys(
    length: int, depth: torch.Tensor, ancestors: torch.Tensor, window: int | None, first: int = 0
) -> torch.Tensor:
    """Which slots each row attends to: committed positions, itself and its ancestors.

    Args:
        length: committed positions.
        depth: int64 [n], distance of each row from the root.
        ancestors: bool [n, n], `[i, j]` true when j is i or an ancestor of i.
        window: a key is visible while `row position - key position < window`; None sees all.
        first: first slot of the answer; slots before it are left out.

    Returns:
        bool [n, length - first + n] over slots first .. length + n - 1.
    """
    committed = torch.arange(first, length, device=depth.device)
    prefix = torch.ones(len(depth), length - first, dtype=torch.bool, device=depth.device)
    rows = ancestors
    if window is not None:
        prefix = (length + depth)[:, None] - committed[None, :] < window
        rows = ancestors & (depth[:, None] - depth[None, :] < window)
    return torch.cat([prefix, rows], dim=1)


def tree_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax attention over the visible keys, scores and sums in float32: the reference.

    Args:
        query: [H, n, D].
        key: [Hkv, s, D]; H is a multiple of Hkv, query head h reads head h // (H / Hkv).
        value: [Hkv, s, D].
        visible: bool [n, s]; every row sees at least one key. Keys that no row sees must still be
            finite, since a zero weight times NaN is NaN.
        scale: factor of the scores.
        softcap: scores become `softcap * tanh(score / softcap)` before the softmax.

    Returns:
        [H, n, D] in query's dtype.
    """
    heads, rows, width = query.shape
    grouped = query.float().view(key.shape[0], -1, rows, width)
    scores = torch.matmul(grouped, key.float()[:, None].transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.matmul(weights, value.float()[:, None]).view(heads, rows, width).to(query.dtype)

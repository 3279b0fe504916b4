"""Our attention function, registered with Transformers, over the static cache.

The function writes the rows' keys and values into their slots, slices what may be seen, and runs
scaled dot-product attention. Query heads that share a key head are folded into extra rows, so
grouped keys are read once instead of being repeated per head.
"""

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from specengine.models.cache import TargetCache
from specengine.models.rows import Rows
from specengine.models.static_rows import StaticRows
from specengine.verify.tree_attention import tree_attention

ATTENTION_NAME = "specengine"


def register_attention() -> None:
    """Make `ATTENTION_NAME` selectable as a Transformers attention implementation."""
    AttentionInterface.register(ATTENTION_NAME, cached_attention)


def cached_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    rows: Rows | StaticRows,
    store: TargetCache,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attend from the rows to the committed prefix and to their ancestors.

    Args:
        module: the attention layer; only `layer_idx` is read.
        query: [1, H, n, D].
        key: [1, Hkv, n, D], the rows' own keys, rotated.
        value: [1, Hkv, n, D].
        attention_mask: ignored; visibility comes from `rows`.
        rows: the pass.
        store: where keys and values live; slots length .. length + n - 1 are written.
        scaling: factor of the scores.
        sliding_window: window in positions, or None.
        softcap: cap of the scores, or None.

    Returns:
        [1, n, H, D] and None (no attention weights).
    """
    view = rows.view(sliding_window)
    keys, values = store.write(module.layer_idx, key, value, rows, view.first)
    if softcap is not None:
        visible = rows.visible(sliding_window, view.first)
        output = tree_attention(
            query[0], keys[0], values[0], visible, scale=scaling, softcap=softcap
        )[None]
    elif view.folded:
        output = _folded_attention(query, keys, values, view.mask, scaling)
    else:
        output = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=view.mask,
            is_causal=view.causal,
            scale=scaling,
            enable_gqa=rows.groups > 1,
        )
    return output.transpose(1, 2), None


def _folded_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    _, heads, count, width = query.shape
    folded = query.reshape(1, keys.shape[1], -1, width)
    output = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return output.reshape(1, heads, count, width)

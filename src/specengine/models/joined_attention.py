"""Attention whose query, key and value projections are one product.

One product leaves queries and keys side by side, so they are rotated together. Values equal those
of the layer it stands in for, up to the summation order of the joined product.
"""

import torch
from torch import nn

from specengine.models.attention import cached_attention
from specengine.models.cache import TargetCache
from specengine.models.layers import joined_linear
from specengine.models.rows import Rows
from specengine.models.static_rows import StaticRows

Rotary = tuple[torch.Tensor, torch.Tensor]


def signed_table(table: Rotary) -> Rotary:
    """A rotary table for vectors whose halves are swapped instead of swapped and half negated.

    Args:
        table: cosines and sines [1, n, R], as Transformers computes them.

    Returns:
        [n, 1, R] each, the first half of the sines negated.
    """
    cosines, sines = (part[0, :, None] for part in table)
    half = sines.shape[-1] // 2
    return cosines, torch.cat([-sines[..., :half], sines[..., half:]], dim=-1)


def rotate(vectors: torch.Tensor, table: Rotary) -> torch.Tensor:
    """Apply the rotary embedding to the first R channels.

    Args:
        vectors: [n, heads, D].
        table: [n, 1, R] each, from `signed_table`.
    """
    cosines, sines = table
    width = cosines.shape[-1]
    turned = vectors if width == vectors.shape[-1] else vectors[..., :width]
    turned = turned * cosines + turned.roll(width // 2, -1) * sines
    if width == vectors.shape[-1]:
        return turned
    return torch.cat([turned, vectors[..., width:]], dim=-1)


class JoinedAttention(nn.Module):
    """Self-attention over the static cache with one input product.

    Args:
        source: a Transformers attention layer with q_proj, k_proj, v_proj and o_proj. Its query
            projection may hold an output gate beside each head's query (Qwen3.5).
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.layer_idx: int = source.layer_idx
        self.width: int = source.head_dim
        self.scaling: float = source.scaling
        self.window: int | None = getattr(source, "sliding_window", None)
        self.key_heads = source.k_proj.out_features // self.width
        self.heads = self.key_heads * source.num_key_value_groups
        gates = source.q_proj.out_features // (self.heads * self.width) - 1
        parts = ("weight", "bias") if source.q_proj.bias is not None else ("weight",)
        joined = {name: self._ordered(source, name, gates) for name in parts}
        self.qkv_proj: nn.Module = joined_linear(joined["weight"], joined.get("bias", ()))
        keys = self.key_heads * self.width
        self.sizes = [self.heads * self.width + keys, keys, gates * self.heads * self.width]
        self.o_proj = source.o_proj
        self.q_norm = getattr(source, "q_norm", None)
        self.k_norm = getattr(source, "k_norm", None)

    def _ordered(self, source: nn.Module, name: str, gates: int) -> list[torch.Tensor]:
        """Output rows in the order query, key, value, gate."""
        query, key, value = (
            getattr(projection, name)
            for projection in (source.q_proj, source.k_proj, source.v_proj)
        )
        by_head = query.view(self.heads, 1 + gates, self.width, *query.shape[1:])
        first, *rest = (part.flatten(0, 1) for part in by_head.unbind(1))
        return [first, key, value, *rest]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Rotary,
        *,
        rows: Rows | StaticRows,
        store: TargetCache,
        **_: object,
    ) -> tuple[torch.Tensor, None]:
        """[1, n, d] to [1, n, d], and None in place of attention weights.

        Args:
            hidden_states: [1, n, d], normed.
            position_embeddings: from `signed_table`.
            rows: the pass.
            store: where keys and values live.
        """
        count = hidden_states.shape[1]
        turning, value, gate = self.qkv_proj(hidden_states[0]).split(self.sizes, dim=-1)
        turning = turning.view(count, -1, self.width)
        if self.q_norm is not None:
            query, key = turning.split([self.heads, self.key_heads], dim=1)
            turning = torch.cat([self.q_norm(query), self.k_norm(key)], dim=1)
        turned = rotate(turning, position_embeddings).transpose(0, 1)[None]
        query, key = turned.split([self.heads, self.key_heads], dim=1)
        output, _weights = cached_attention(
            self,
            query,
            key,
            value.view(count, -1, self.width).transpose(0, 1)[None],
            None,
            rows=rows,
            store=store,
            scaling=self.scaling,
            sliding_window=self.window,
        )
        output = output.reshape(1, count, -1)
        if self.sizes[-1]:
            output = output * torch.sigmoid(gate)
        return self.o_proj(output), None

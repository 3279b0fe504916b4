"""The EAGLE-3 network: one causal layer over token and feature, under the published names.

A row pairs the feature of position p with the token of position p + 1 and predicts the token after
that. The first row of a draft reads the target's tapped states through `fc`; later rows read the
layer's own output, which has not been normed unless the checkpoint says so.
"""

from collections.abc import Callable

import torch
from torch import nn

from specengine.drafters.layers import GatedMLP, RMSNorm, rotary_tables, rotate
from specengine.drafters.records import Eagle3Config
from specengine.drafters.vocabulary import add_vocabulary

KeysValues = tuple[torch.Tensor, torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Rotated queries [..., heads, D], rotated keys and values [..., kv_heads, D] of a step's rows to
mixed values [..., heads, D]."""


class PairAttention(nn.Module):
    """Attention whose inputs are twice as wide as its output."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        bias = config.attention_bias
        self.q_proj = nn.Linear(2 * width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(2 * width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(2 * width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, pairs: torch.Tensor, tables: KeysValues, attend: Attend) -> torch.Tensor:
        """Attend.

        Args:
            pairs: [..., 2 d], normed.
            tables: rotary tables [..., D] of the rows' positions.
            attend: mixes the rows' values.

        Returns:
            [..., d].
        """
        query = self.q_proj(pairs).unflatten(-1, (self.heads, self.head_dim))
        keys = self.k_proj(pairs).unflatten(-1, (self.kv_heads, self.head_dim))
        values = self.v_proj(pairs).unflatten(-1, (self.kv_heads, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query, keys = self.q_norm(query), self.k_norm(keys)
        spread = (tables[0].unsqueeze(-2), tables[1].unsqueeze(-2))
        mixed = attend(rotate(query, spread), rotate(keys, spread), values)
        return self.o_proj(mixed.flatten(-2))


class PairLayer(nn.Module):
    """The decoder layer: token and feature are normed apart, the feature is the residual."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = RMSNorm(width, eps)
        self.hidden_norm = RMSNorm(width, eps)
        self.self_attn = PairAttention(config)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = GatedMLP(width, config.intermediate_size)

    def forward(
        self, embedded: torch.Tensor, features: torch.Tensor, tables: KeysValues, attend: Attend
    ) -> torch.Tensor:
        """Shapes as in `PairAttention.forward`; `embedded` and `features` are [..., d]."""
        normed = self.hidden_norm(features)
        pairs = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        residual = normed if self.norm_before_residual else features
        rows = residual + self.self_attn(pairs, tables, attend)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Eagle3Network(nn.Module):
    """Everything that an EAGLE-3 checkpoint holds."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        width, eps = config.hidden_size, config.rms_norm_eps
        taps, source = len(config.target_layer_ids), config.target_hidden_size
        self.input_norm = RMSNorm(taps * source, eps) if config.norm_before_fc else None
        self.fc_norm = (
            nn.ModuleList(RMSNorm(source, eps) for _ in range(taps)) if config.fc_norm else None
        )
        self.fc = nn.Linear(taps * source, width, bias=False)
        self.layers = nn.ModuleList([PairLayer(config)])
        self.norm = RMSNorm(width, eps)
        add_vocabulary(self, config)

    def features(self, tapped: torch.Tensor) -> torch.Tensor:
        """Tapped target states [..., taps * target width] to features [..., d]."""
        if self.input_norm is not None:
            tapped = self.input_norm(tapped)
        if self.fc_norm is not None:
            parts = tapped.chunk(len(self.fc_norm), dim=-1)
            tapped = torch.cat(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1
            )
        return self.fc(tapped)

    def forward(
        self, embedded: torch.Tensor, features: torch.Tensor, positions: torch.Tensor,
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """One step over rows.

        Args:
            embedded: [..., d], token embeddings.
            features: [..., d], of the positions before those tokens.
            positions: int64 [...], the features' positions.
            attend: mixes the rows' values; drafting and training see other rows.

        Returns:
            What the head reads, [..., d], and what the next step reads as features, [..., d].
        """
        tables = rotary_tables(positions, self.config)
        rows = self.layers[0](embedded, features, tables, attend)
        normed = self.norm(rows)
        return normed, (normed if self.config.norm_output else rows)

"""Layers of a block drafter: norm, rotary positions, attention, MLP, dynamic convolution.

Tensors of block rows have shape [S, A, B, d]: S sequences, A blocks per sequence (1 when drafting),
B rows per block with the anchor in row 0. Context keys and values are shared by the blocks of a
sequence. Training and drafting run the same code.
"""

from functools import cache

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specengine.drafters.records import BlockConfig, DFlash2Config, DraftConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight; the mean square is taken in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


def rotary_tables(
    positions: torch.Tensor, config: DraftConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 [..., head_dim], of integer positions [...]."""
    if config.rope_scaling:
        frequency, factor = _scaled_frequencies(
            config.head_dim, config.rope_theta, config.max_position_embeddings, config.rope_scaling
        )
        frequency = frequency.to(positions.device)
    else:
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=positions.device)
        frequency, factor = config.rope_theta ** (-exponent / config.head_dim), 1.0
    angle = positions.float()[..., None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos() * factor, angle.sin() * factor


@cache
def _scaled_frequencies(
    head_dim: int, theta: float, longest: int, scaling: tuple[tuple[str, object], ...]
) -> tuple[torch.Tensor, float]:
    """Frequencies float32 [head_dim / 2] and the factor of the tables."""
    rope = {**dict(scaling), "rope_theta": theta}
    config = LlamaConfig(
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=longest,
        rope_parameters=rope,
    )
    # On the CPU even while a network is laid out on the meta device: the values are kept.
    with torch.device("cpu"):
        frequency, factor = ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](config, torch.device("cpu"))
    return frequency.float(), float(factor)


def rotate(x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Apply rotary positions to [..., head_dim]; the tables broadcast against x."""
    cos, sin = (table.to(x.dtype) for table in tables)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class GroupedDynamicConv(nn.Module):
    """Causal convolution over block rows around a sublayer, with kernels made from its input.

    One kernel filters the sublayer's input, the other its output; both come from the input rows.
    Rows before the anchor count as zero, whatever the number of rows in the block.
    """

    def __init__(self, hidden: int, taps: int, group: int) -> None:
        super().__init__()
        self.taps, self.groups, self.group = taps, hidden // group, group
        base = torch.zeros(2, taps, hidden)
        base[:, 0] = 1.0
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(hidden, 2 * taps * self.groups, bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def prepare(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Filter the normed sublayer input [..., B, d]; also return the kernels' offsets."""
        offsets = self.kernel_projection(rows).unflatten(-1, (2, self.taps, self.groups))
        return self._filter(rows, offsets[..., 0, :, :], self.base_kernel[0]), offsets

    def finish(self, rows: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Filter the sublayer's output with the kernels made from its input."""
        return self._filter(rows, offsets[..., 1, :, :], self.base_kernel[1])

    def _filter(
        self, rows: torch.Tensor, offsets: torch.Tensor, base: torch.Tensor
    ) -> torch.Tensor:
        grouped = rows.unflatten(-1, (self.groups, self.group))
        total = torch.zeros_like(grouped)
        for tap in range(min(self.taps, rows.shape[-2])):
            kernel = base[tap].view(self.groups, self.group) + offsets[..., tap, :, None]
            shifted = functional.pad(grouped, (0, 0, 0, 0, tap, 0))[..., : rows.shape[-2], :, :]
            total = total + kernel * shifted
        return total.flatten(-2)


class BlockAttention(nn.Module):
    """Attention of block rows over [context; own block], with normed queries and keys."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.causal = config.is_causal[layer]
        bias = config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def keys_values(
        self, rows: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated keys and values [..., n, kv_heads, D] of rows [..., n, d] (context or block)."""
        shape = (self.kv_heads, self.head_dim)
        keys = self.k_norm(self.k_proj(rows).unflatten(-1, shape))
        spread = (tables[0].unsqueeze(-2), tables[1].unsqueeze(-2))
        return rotate(keys, spread), self.v_proj(rows).unflatten(-1, shape)

    def forward(
        self,
        rows: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        context: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Attend.

        Args:
            rows: [S, A, B, d], normed and filtered.
            tables: rotary tables [S, A, B, D] of the rows' positions.
            context: keys and values, each [S, kv_heads, n, D].
            visible: bool [S, A, B or 1, n], the context positions that a row sees.

        Returns:
            [S, A, B, d].
        """
        shape = (rows.shape[1], rows.shape[2], self.heads // self.kv_heads)
        keys, values = (part.movedim(-2, 2) for part in self.keys_values(rows, tables))
        query = self.q_norm(self.q_proj(rows).unflatten(-1, (self.heads, self.head_dim)))
        query = rotate(query, (tables[0].unsqueeze(-2), tables[1].unsqueeze(-2)))
        # [S, kv_heads, A, B, group, D]: the query heads of one KV head become further rows, so
        # that keys and values are never repeated.
        query = query.unflatten(-2, (self.kv_heads, -1)).movedim(3, 1) * self.head_dim**-0.5
        keys, values = keys.movedim(2, 1), values.movedim(2, 1)
        flat = query.flatten(2, 4)
        far = (flat @ context[0].transpose(-1, -2)).unflatten(2, shape)
        far = far.masked_fill(~visible[:, None, :, :, None, :], float("-inf"))
        near = query.flatten(3, 4) @ keys.transpose(-1, -2)
        near = near.unflatten(3, shape[1:])
        if self.causal:
            future = torch.ones(shape[1], shape[1], dtype=torch.bool, device=rows.device).triu(1)
            near = near.masked_fill(future[:, None, :], float("-inf"))
        weights = torch.cat((far, near), dim=-1).softmax(-1, dtype=torch.float32).to(values.dtype)
        length = far.shape[-1]
        mixed = weights[..., :length].flatten(2, 4) @ context[1]
        mixed = mixed.unflatten(2, shape)
        mixed = mixed + (weights[..., length:].flatten(3, 4) @ values).unflatten(3, shape[1:])
        return self.o_proj(mixed.movedim(1, 3).flatten(3))


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class BlockLayer(nn.Module):
    """Norm, sublayer, residual: once for attention, once for the MLP."""

    def __init__(self, config: BlockConfig, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = BlockAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, config.intermediate_size)

    def forward(
        self,
        rows: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        context: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Shapes as in `BlockAttention.forward`."""
        rows = rows + self.self_attn(self.input_layernorm(rows), tables, context, visible)
        return rows + self.mlp(self.post_attention_layernorm(rows))


class FilteredLayer(BlockLayer):
    """A block layer whose sublayers stand between two filters each (DFlash2)."""

    def __init__(self, config: DFlash2Config, layer: int) -> None:
        super().__init__(config, layer)
        hidden, taps, group = config.hidden_size, config.conv_kernel_size, config.conv_group_size
        self.attention_conv = GroupedDynamicConv(hidden, taps, group)
        self.mlp_conv = GroupedDynamicConv(hidden, taps, group)

    def forward(
        self,
        rows: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        context: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor,
    ) -> torch.Tensor:
        """Shapes as in `BlockAttention.forward`."""
        filtered, offsets = self.attention_conv.prepare(self.input_layernorm(rows))
        attended = self.self_attn(filtered, tables, context, visible)
        rows = rows + self.attention_conv.finish(attended, offsets)
        filtered, offsets = self.mlp_conv.prepare(self.post_attention_layernorm(rows))
        return rows + self.mlp_conv.finish(self.mlp(filtered), offsets)

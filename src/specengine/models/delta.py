"""Our Gated DeltaNet layer around the parameters of the Transformers one (Qwen3.5 hybrid)."""

import torch
import torch.nn.functional as F
from torch import nn

from specengine.models.cache import TargetCache
from specengine.models.rows import Rows
from specengine.models.static_rows import StaticRows
from specengine.verify.gated_delta import (
    CHUNK_ROWS,
    DeltaInputs,
    PathRows,
    WholeChain,
    chain_outputs,
    conv_windows,
    path_outputs,
)

_NORM_EPSILON = 1e-6
"""Keeps the length of a zero query or key away from zero."""


class GatedDelta(nn.Module):
    """Recurrent token mixer over the rows of a pass.

    Args:
        source: the Transformers layer; its submodules and parameters are shared, not copied.
    """

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.layer_idx: int = source.layer_idx
        self.in_proj_qkv = source.in_proj_qkv
        self.in_proj_z = source.in_proj_z
        self.in_proj_b = source.in_proj_b
        self.in_proj_a = source.in_proj_a
        self.conv1d = source.conv1d
        self.norm = source.norm
        self.out_proj = source.out_proj
        self.A_log = source.A_log
        self.dt_bias = source.dt_bias
        self.key_heads: int = source.num_k_heads
        self.value_heads: int = source.num_v_heads
        self.key_width: int = source.head_k_dim
        self.value_width: int = source.head_v_dim

    def forward(
        self,
        hidden_states: torch.Tensor,
        *,
        rows: Rows | StaticRows,
        store: TargetCache,
        **_: object,
    ) -> torch.Tensor:
        """[1, n, d] to [1, n, d]; the rows are left with the cache, to be committed or dropped."""
        hidden = hidden_states[0]
        mixed = self.in_proj_qkv(hidden)
        conv, state = store.state(self.layer_idx)
        inputs = self._inputs(hidden, conv_windows(conv, mixed, rows.parent))
        if rows.whole and rows.count > CHUNK_ROWS:
            output, final = chain_outputs(state, inputs)
            tail = torch.cat([conv, mixed[-len(conv) :]])[-len(conv) :]
            store.keep(self.layer_idx, WholeChain(rows.count, tail, final))
        else:
            output = path_outputs(state, inputs, rows.levels())
            store.keep(self.layer_idx, PathRows(mixed, inputs))
        return self._project(output, hidden)[None]

    def _inputs(self, hidden: torch.Tensor, windows: torch.Tensor) -> DeltaInputs:
        kernel = self.conv1d.weight[:, 0].float()
        mixed = (windows.float() * kernel).sum(-1)
        if self.conv1d.bias is not None:
            mixed = mixed + self.conv1d.bias.float()
        mixed = F.silu(mixed.to(hidden.dtype)).float()
        keys = self.key_heads * self.key_width
        query, key, value = mixed.split([keys, keys, self.value_heads * self.value_width], dim=1)
        query = _unit(query.view(len(hidden), self.key_heads, -1))
        key = _unit(key.view(len(hidden), self.key_heads, -1))
        repeats = self.value_heads // self.key_heads
        rate = self.A_log.float().exp()
        gate = F.softplus(self.in_proj_a(hidden).float() + self.dt_bias.float())
        return DeltaInputs(
            query=query.repeat_interleave(repeats, dim=1) * self.key_width**-0.5,
            key=key.repeat_interleave(repeats, dim=1),
            value=value.view(len(hidden), self.value_heads, -1),
            decay=-rate * gate,
            beta=self.in_proj_b(hidden).sigmoid().float(),
        )

    def _project(self, output: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        gate = self.in_proj_z(hidden).view(-1, self.value_width)
        normed = self.norm(output.reshape(-1, self.value_width).to(hidden.dtype), gate)
        return self.out_proj(normed.view(len(hidden), -1))


def _unit(vector: torch.Tensor) -> torch.Tensor:
    squares = (vector * vector).sum(dim=-1, keepdim=True)
    return vector * torch.rsqrt(squares + _NORM_EPSILON)

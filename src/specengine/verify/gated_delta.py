"""Gated DeltaNet over the rows of a verify pass, in plain torch (paper sections 2.3 and 4.2).

Each head holds a float32 state h and per row t computes

    h_t = exp(g_t) (I - beta_t k_t k_t^T) h_p + beta_t k_t v_t^T,    o_t = h_t^T q_t,

where p is the parent of t, and the committed state for row 0. The decay multiplies the state
before the write reads it. No state is stored per node: a pass keeps the states of one depth at a
time, and a commit replays the accepted path from the rows' saved inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """What a pass saves of one layer so that accepted rows can be committed.

    Attributes:
        inputs: [n, channels], inputs of the short convolution.
        key: float32 [n, heads, key_width], normalised.
        value: float32 [n, heads, value_width].
        decay: float32 [n, heads], g of the recurrence, at most 0.
        beta: float32 [n, heads], write strength.
        final: state after the last row when the rows are a chain, else None.
    """

    inputs: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor
    final: torch.Tensor | None


def advance(
    state: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """One application of the rule to a batch of states.

    Args:
        state: float32 [..., key_width, value_width].
        key: float32 [..., key_width].
        value: float32 [..., value_width].
        decay: float32 [...].
        beta: float32 [...].

    Returns:
        The states after the row, a new tensor.
    """
    state = state * decay.exp()[..., None, None]
    read = torch.matmul(key[..., None, :], state).squeeze(-2)
    write = (value - read) * beta[..., None]
    return state + key[..., :, None] * write[..., None, :]


def replay(
    conv: torch.Tensor, state: torch.Tensor, rows: DeltaRows, path: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Convolution inputs and recurrent state after the rows of a path.

    Args:
        conv: [taps - 1, channels], committed inputs.
        state: float32 [heads, key_width, value_width], committed state.
        rows: the pass.
        path: rows from row 0 downwards.

    Returns:
        New tensors of the shapes of `conv` and `state`.
    """
    inputs = torch.cat([conv, rows.inputs[list(path)]])[len(path) :]
    if rows.final is not None and len(path) == len(rows.inputs):
        return inputs, rows.final
    for row in path:
        state = advance(state, rows.key[row], rows.value[row], rows.decay[row], rows.beta[row])
    return inputs, state

"""Gated DeltaNet over the rows of a pass, in plain torch (paper sections 2.3 and 4.2).

Each head holds a float32 state h and per row t computes

    h_t = exp(g_t) h_p - beta_t k_t (k_t^T exp(g_t) h_p) + beta_t k_t v_t^T,    o_t = h_t^T q_t,

where p is the parent of t, and the committed state for row 0. No state is stored per node: a pass
holds the states of one depth at a time, and a commit replays the accepted path from the rows' saved
inputs. Long chains (prefill) use the WY form, which turns a chunk of rank-one updates into matrix
products and differs in rounding only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

CHUNK_ROWS = 64
"""Rows per WY chunk; a chain of at most this many rows walks its path row by row."""

Level = tuple[torch.Tensor, torch.Tensor]
"""Rows of one depth, and where their parents are among the rows of the depth above; int64."""


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Inputs of the recurrence for n rows, all float32.

    Attributes:
        query: [n, heads, key_width], normalised and scaled.
        key: [n, heads, key_width], normalised.
        value: [n, heads, value_width].
        decay: [n, heads], g, at most 0.
        beta: [n, heads], write strength.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


@dataclass(frozen=True, slots=True)
class PathRows:
    """Rows of a pass, any path of which can be committed.

    Attributes:
        conv: [n, channels], inputs of the short convolution.
        inputs: inputs of the recurrence.
    """

    conv: torch.Tensor
    inputs: DeltaInputs

    def after(
        self, conv: torch.Tensor, state: torch.Tensor, path: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Committed convolution inputs and state once the rows of `path` follow them.

        Args:
            conv: [taps - 1, channels], committed so far.
            state: [heads, key_width, value_width], committed so far.
            path: rows from row 0 downwards.

        Returns:
            New tensors of the shapes of `conv` and `state`.
        """
        for row in path:
            state = advance(
                state,
                self.inputs.key[row],
                self.inputs.value[row],
                self.inputs.decay[row],
                self.inputs.beta[row],
            )
        return torch.cat([conv, self.conv[list(path)]])[len(path) :], state


@dataclass(frozen=True, slots=True)
class WholeChain:
    """A long chain that is committed as a whole: only what follows its last row is kept.

    Attributes:
        count: rows of the chain.
        conv: [taps - 1, channels] after the last row.
        state: [heads, key_width, value_width] after the last row.
    """

    count: int
    conv: torch.Tensor
    state: torch.Tensor

    def after(
        self, conv: torch.Tensor, state: torch.Tensor, path: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `PathRows.after`.

        Raises:
            ValueError: `path` is not the whole chain.
        """
        if len(path) != self.count:
            raise ValueError(f"a chain of {self.count} rows is committed whole or not at all")
        return self.conv, self.state


def levels(parent: Sequence[int], device: torch.device) -> list[Level]:
    """Group rows by depth, each with its parent's place in the level above."""
    depth: list[int] = []
    grouped: list[list[int]] = []
    place: list[int] = []
    for above in parent:
        depth.append(0 if above < 0 else depth[above] + 1)
        if depth[-1] == len(grouped):
            grouped.append([])
        place.append(len(grouped[depth[-1]]))
        grouped[depth[-1]].append(len(depth) - 1)
    return [
        (
            torch.tensor(rows, device=device),
            torch.tensor([place[parent[row]] if row else 0 for row in rows], device=device),
        )
        for rows in grouped
    ]


def conv_windows(
    conv: torch.Tensor, inputs: torch.Tensor, parent: Sequence[int] | None
) -> torch.Tensor:
    """What the short convolution of each row covers: the row, its nearest ancestors, and then the
    committed inputs.

    Args:
        conv: [taps - 1, channels], committed inputs, oldest first.
        inputs: [n, channels], inputs of the rows.
        parent: parents of the rows, or None for a chain.

    Returns:
        [n, channels, taps], oldest first.
    """
    reach = len(conv)
    joined = torch.cat([conv, inputs])
    if parent is None:
        return joined.unfold(0, reach + 1, 1)
    covered: list[list[int]] = []
    for row, above in enumerate(parent):
        before = covered[above] if above >= 0 else list(range(-1, reach))
        covered.append([*before[1:], reach + row])
    index = torch.tensor(covered, device=inputs.device)
    return joined[index].transpose(1, 2)


def advance(
    state: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> torch.Tensor:
    """One application of the rule to a batch of float32 states.

    Args:
        state: [..., key_width, value_width].
        key: [..., key_width].
        value: [..., value_width].
        decay: [...].
        beta: [...].

    Returns:
        The states after the row, a new tensor.
    """
    state = state * decay.exp()[..., None, None]
    read = torch.matmul(key[..., None, :], state).squeeze(-2)
    write = (value - read) * beta[..., None]
    return state + key[..., :, None] * write[..., None, :]


def path_outputs(state: torch.Tensor, rows: DeltaInputs, by_depth: Sequence[Level]) -> torch.Tensor:
    """Outputs of every row, each computed along its own root path.

    Args:
        state: float32 [heads, key_width, value_width], committed.
        rows: the pass.
        by_depth: levels of the rows.

    Returns:
        float32 [n, heads, value_width].
    """
    output = torch.empty_like(rows.value)
    states = state[None]
    for index, above in by_depth:
        states = advance(
            states[above], rows.key[index], rows.value[index], rows.decay[index], rows.beta[index]
        )
        output[index] = torch.matmul(rows.query[index][..., None, :], states).squeeze(-2)
    return output


def chain_outputs(state: torch.Tensor, rows: DeltaInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of a chain of any length in the WY form, chunk by chunk.

    Args:
        state: float32 [heads, key_width, value_width], committed.
        rows: the chain.

    Returns:
        float32 [n, heads, value_width], and the state after the last row.
    """
    outputs = []
    for start in range(0, len(rows.key), CHUNK_ROWS):
        output, state = _chunk(state, rows, slice(start, start + CHUNK_ROWS))
        outputs.append(output)
    return torch.cat(outputs), state


def _chunk(
    state: torch.Tensor, rows: DeltaInputs, part: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    query, key, value = (x[part].transpose(0, 1) for x in (rows.query, rows.key, rows.value))
    decay = rows.decay[part].T.cumsum(dim=1)
    beta = rows.beta[part].T[..., None]
    count = decay.shape[1]
    later = torch.ones(count, count, dtype=torch.bool, device=state.device).triu(1)
    # Masked before exp: the gap grows without bound above the diagonal.
    gap = (decay[:, :, None] - decay[:, None, :]).masked_fill(later, float("-inf")).exp()
    total = decay.exp()[..., None]
    system = beta * torch.matmul(key, key.transpose(1, 2)) * gap
    known = beta * (value - total * torch.matmul(key, state))
    writes = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    inner = torch.matmul(query, key.transpose(1, 2)) * gap
    output = total * torch.matmul(query, state) + torch.matmul(inner, writes)
    left = (decay[:, -1:] - decay).exp()[..., None]
    state = total[:, -1:] * state + torch.matmul((key * left).transpose(1, 2), writes)
    return output.transpose(0, 1), state

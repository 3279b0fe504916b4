"""Static caches of a target: keys and values by slot, convolution and recurrent state by layer.

Everything is allocated for `capacity` positions up front; a step writes into slots and never
grows a tensor. Slots length .. length + n - 1 hold the rows of the last forward pass; `commit`
moves the accepted ones together and advances `length`. Slots beyond that hold garbage that must
never be read: attention slices, and only captured passes mask (`StaticRows`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specengine.errors import RequestError
from specengine.models.rows import Rows
from specengine.models.static_rows import StaticRows
from specengine.verify.gated_delta import PathRows, WholeChain


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """Sizes of the attention layers' cache."""

    layers: tuple[int, ...]
    """Indices of the decoder layers that attend."""
    heads: int
    """Key/value heads."""
    width: int
    """Channels per head."""


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of the Gated DeltaNet layers' state."""

    layers: tuple[int, ...]
    """Indices of the decoder layers that recur."""
    channels: int
    """Channels of the short convolution."""
    taps: int
    """Length of the convolution kernel."""
    heads: int
    """Value heads."""
    key_width: int
    """Channels of a key."""
    value_width: int
    """Channels of a value."""


class TargetCache:
    """State of one request.

    Attributes:
        capacity: positions that fit, verified rows included.
        length: committed positions.
        keys_values: [2 * layers, Hkv, capacity, D], keys of layer i at 2i and values at 2i + 1.
        conv: [layers, taps - 1, channels] in the model's dtype, the last committed inputs.
        recurrent: float32 [layers, heads, key_width, value_width].
        masked: passes read slots that hold nothing and mask them, so they must be finite.
    """

    def __init__(
        self,
        capacity: int,
        attention: KeyValueShape,
        delta: DeltaShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        masked: bool = False,
    ) -> None:
        self.capacity = capacity
        self.length = 0
        self.masked = masked
        self.keys_values = (torch.zeros if masked else torch.empty)(
            2 * len(attention.layers),
            attention.heads,
            capacity,
            attention.width,
            dtype=dtype,
            device=device,
        )
        self._keys = {x: self.keys_values[None, 2 * i] for i, x in enumerate(attention.layers)}
        self._values = {
            x: self.keys_values[None, 2 * i + 1] for i, x in enumerate(attention.layers)
        }
        count = len(delta.layers)
        self.conv = torch.zeros(count, delta.taps - 1, delta.channels, dtype=dtype, device=device)
        self.recurrent = torch.zeros(
            count, delta.heads, delta.key_width, delta.value_width, device=device
        )
        self._state_index = {layer: i for i, layer in enumerate(delta.layers)}
        self._pending: Rows | None = None
        self._pending_delta: dict[int, PathRows | WholeChain] = {}

    def reset(self) -> None:
        """Forget everything committed; the buffers stay allocated."""
        self.length = 0
        if self.masked:
            self.keys_values.zero_()
        self.conv.zero_()
        self.recurrent.zero_()
        self._pending = None
        self._pending_delta = {}

    def begin(self, rows: Rows) -> None:
        """Announce the rows of a forward pass; uncommitted rows of an earlier pass are dropped.

        Raises:
            RequestError: the rows do not fit.
        """
        if rows.length + rows.count > self.capacity:
            raise RequestError(
                f"needs {rows.length + rows.count} cache positions and has {self.capacity}",
                where="prompt",
                fix="shorten the prompt or the output limit",
            )
        self._pending = rows
        self._pending_delta = {}

    def write(
        self,
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
        rows: Rows | StaticRows,
        first: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the rows' keys and values of one layer.

        Args:
            layer: decoder layer.
            key: [1, Hkv, n, D].
            value: [1, Hkv, n, D].
            rows: the pass, which says what slots it takes.
            first: first slot of the answer.

        Returns:
            Views [1, Hkv, length + n - first, D] of keys and values; of static rows their span.
        """
        keys, values = self._keys[layer], self._values[layer]
        if isinstance(rows, StaticRows):
            keys.index_copy_(2, rows.slots, key)
            values.index_copy_(2, rows.slots, value)
            return keys.narrow(2, first, rows.span), values.narrow(2, first, rows.span)
        keys.narrow(2, rows.length, rows.count).copy_(key)
        values.narrow(2, rows.length, rows.count).copy_(value)
        seen = rows.length + rows.count - first
        return keys.narrow(2, first, seen), values.narrow(2, first, seen)

    def pending_delta(self) -> dict[int, PathRows | WholeChain]:
        """Rows of the recurrent layers that are neither committed nor dropped."""
        return dict(self._pending_delta)

    def restore(self, pending: dict[int, PathRows | WholeChain]) -> None:
        """Take rows of the recurrent layers that a replayed pass has filled anew."""
        self._pending_delta = dict(pending)

    def state(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Committed convolution inputs [taps - 1, channels] and recurrent state of one layer."""
        index = self._state_index[layer]
        return self.conv[index], self.recurrent[index]

    def keep(self, layer: int, rows: PathRows | WholeChain) -> None:
        """Remember the rows of one recurrent layer until they are committed or dropped."""
        self._pending_delta[layer] = rows

    def commit(self, rows: Sequence[int]) -> None:
        """Keep some rows of the last pass and advance `length`.

        Args:
            rows: row 0 first, then each the child of the one before it.

        Raises:
            ValueError: no rows are pending, or `rows` is not a path from row 0.
        """
        self._check_path(rows)
        states = {
            layer: pending.after(*self.state(layer), rows)
            for layer, pending in self._pending_delta.items()
        }
        self._compact(rows)
        # Written only once every layer's replay has succeeded: convolution and recurrent state of
        # all layers move together or not at all.
        for layer, (conv, recurrent) in states.items():
            index = self._state_index[layer]
            self.conv[index] = conv
            self.recurrent[index] = recurrent
        self.length += len(rows)
        self._pending = None
        self._pending_delta = {}

    def _check_path(self, rows: Sequence[int]) -> None:
        pending = self._pending
        if pending is None:
            raise ValueError("commit needs a forward pass whose rows are not committed yet")
        parents = range(-1, pending.count - 1) if pending.parent is None else pending.parent
        previous = -1
        for row in rows:
            if not 0 <= row < pending.count or parents[row] != previous:
                raise ValueError(f"rows {list(rows)} are not a path from row 0")
            previous = row

    def _compact(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(len(rows))):
            return
        start = self.length
        source = torch.tensor(rows, device=self.keys_values.device) + start
        kept = self.keys_values.index_select(2, source)
        self.keys_values[:, :, start : start + len(rows)] = kept

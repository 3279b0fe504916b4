"""Batched generation with a static cache: the target answers thousands of prompts at once.

Attention is replaced by a function that owns the cache, so that any Transformers decoder with
plain softmax attention is served alike. On CUDA one decoding step is one graph per cache length.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from specengine.train.teacher import Teacher

_ATTENTION = "specengine_static"
_BUCKET = 128
_PREFILL_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to generate: greedily at temperature 0, else from the tempered distribution."""

    max_new_tokens: int
    temperature: float = 0.0
    quit_below: float = 0.0
    """End the batch once this share of rows, or less, is still writing; their text is cut."""


class BatchGenerator:
    """Generates for up to `rows` prompts at once; prompts are padded on the left."""

    def __init__(self, teacher: Teacher, rows: int, capacity: int) -> None:
        config = teacher.config
        self.teacher, self.rows = teacher, rows
        self.capacity = -(-capacity // _BUCKET) * _BUCKET
        self.heads = config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        device, dtype = teacher.device, teacher.model.dtype
        shape = (len(teacher.layers), rows, self.heads, self.capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self.padding = torch.zeros(rows, dtype=torch.long, device=device)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.written = torch.zeros(rows, self.capacity, dtype=torch.long, device=device)
        self.stop = torch.tensor(sorted(teacher.stop_ids), device=device)
        self._graphs: dict[tuple[int, float], torch.cuda.CUDAGraph] = {}
        self._span = slice(0, rows)
        self._bias: torch.Tensor | None = None

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], how: Sampling) -> list[list[int]]:
        """Continuations, each cut after its first stop token; at most `rows` prompts."""
        config = self.teacher.config
        previous = config._attn_implementation
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, self._attend)
        config._attn_implementation = _ATTENTION
        try:
            return self._generate(prompts, how)
        finally:
            config._attn_implementation = previous

    def _generate(self, prompts: Sequence[Sequence[int]], how: Sampling) -> list[list[int]]:
        width = -(-max(len(prompt) for prompt in prompts) // 32) * 32
        limit = min(how.max_new_tokens, self.capacity - width)
        self._prefill(prompts, width, how.temperature)
        made = 1
        while made < limit:
            self._step(width + made, how.temperature)
            made += 1
            if made % 16 == 0:
                writing = (~self.done[: len(prompts)]).float().mean().item()
                if writing <= how.quit_below:
                    break
        rows = self.written[: len(prompts), width : width + made].tolist()
        return [_cut(row, self.teacher.stop_ids) for row in rows]

    def _prefill(self, prompts: Sequence[Sequence[int]], width: int, temperature: float) -> None:
        device = self.teacher.device
        tokens = torch.zeros(self.rows, width, dtype=torch.long)
        padding = torch.full((self.rows,), width - 1)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            padding[row] = width - len(prompt)
        self.padding.copy_(padding)
        self.done.fill_(False)
        tokens = tokens.to(device)
        columns = torch.arange(width, device=device)
        causal = columns[:, None] >= columns
        for start in range(0, self.rows, _PREFILL_ROWS):
            self._span = slice(start, min(start + _PREFILL_ROWS, self.rows))
            pad = self.padding[self._span, None]
            # A padding row sees itself, since a row that sees nothing would turn into NaN.
            mask = causal & (columns >= pad)[:, None, :] | torch.eye(
                width, dtype=torch.bool, device=device
            )
            hidden = self._forward(tokens[self._span], (columns - pad).clamp(min=0), mask)
            self.tokens[self._span] = self._pick(hidden[:, -1], temperature)
        self._span = slice(0, self.rows)
        self.column.fill_(width)
        self._record()

    def _step(self, column: int, temperature: float) -> None:
        length = -(-column // _BUCKET) * _BUCKET
        if self.teacher.device.type != "cuda":
            self._decode(length, temperature)
            return
        key = (length, temperature)
        if key not in self._graphs:
            self._graphs[key] = self._capture(length, temperature)
        self._graphs[key].replay()

    def _capture(self, length: int, temperature: float) -> torch.cuda.CUDAGraph:
        state = (self.tokens, self.column, self.done)
        saved = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(length, temperature)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._decode(length, temperature)
        return graph

    def _decode(self, length: int, temperature: float) -> None:
        """Feed `tokens`, which stand one column before `column`'s next, and write the next ones."""
        columns = torch.arange(length, device=self.teacher.device)
        seen = (columns < self.column) & (columns >= self.padding[:, None])
        # The fed token stands at the column that was recorded last.
        bias = torch.zeros(self.rows, 1, 1, length, dtype=self.keys.dtype, device=seen.device)
        self._bias = bias.masked_fill(~seen[:, None, None, :], float("-inf"))
        positions = (self.column - 1 - self.padding).clamp(min=0)[:, None]
        hidden = self._forward(self.tokens[:, None], positions, seen[:, None, :])
        self.tokens.copy_(self._pick(hidden[:, -1], temperature))
        self._record()

    def _record(self) -> None:
        self.written.index_copy_(1, self.column, self.tokens[:, None])
        self.done |= torch.isin(self.tokens, self.stop)
        self.column += 1

    def _forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        return self.teacher.model.model(
            input_ids=tokens,
            attention_mask=mask[:, None],
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state

    def _pick(self, hidden: torch.Tensor, temperature: float) -> torch.Tensor:
        logits = self.teacher.head(hidden)
        if temperature == 0.0:
            return logits.argmax(-1)
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
        return (logits.float() / temperature - noise.log()).argmax(-1)

    def _attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        scaling: float,
        **_unused: Any,
    ) -> tuple[torch.Tensor, None]:
        layer = module.layer_idx
        keys, values = self.keys[layer], self.values[layer]
        width = query.shape[2]
        if width > 1:
            keys[self._span, :, :width] = key
            values[self._span, :, :width] = value
            groups = query.shape[1] // self.heads
            out = functional.scaled_dot_product_attention(
                query,
                key.repeat_interleave(groups, 1),
                value.repeat_interleave(groups, 1),
                attn_mask=attention_mask,
                scale=scaling,
            )
            return out.transpose(1, 2), None
        place = self.column - 1
        keys.index_copy_(2, place, key)
        values.index_copy_(2, place, value)
        length = attention_mask.shape[-1]
        # The query heads of one KV head stand as rows of one attention, so nothing is repeated.
        rows = query.view(self.rows, self.heads, -1, query.shape[-1])
        assert self._bias is not None
        out = functional.scaled_dot_product_attention(
            rows,
            keys[:, :, :length],
            values[:, :, :length],
            attn_mask=self._bias.expand(-1, self.heads, rows.shape[2], -1),
            scale=scaling,
        )
        return out.reshape(self.rows, 1, -1, query.shape[-1]), None


def _cut(row: list[int], stop: frozenset[int]) -> list[int]:
    for place, token in enumerate(row):
        if token in stop:
            return row[: place + 1]
    return row


class Stopwatch:
    """Seconds left of a time box; a box of None never ends."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

"""The target model: one forward pass over a chain or a tree, and the commit of what was accepted.

A Target drives the decoder layers of a Transformers model directly: it computes rotary tables and
visibility once per pass and hands them to every layer. Only rows whose logits are asked for go
through the LM head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from specengine.decoding.options import EngineOptions
from specengine.errors import OptionError, RequestError
from specengine.models.attention import ATTENTION_NAME, register_attention
from specengine.models.cache import TargetCache
from specengine.models.families import Layout, Rotary, layout_of
from specengine.models.graphs import PassGraphs
from specengine.models.joined_attention import signed_table
from specengine.models.linear import PrepackedLinear
from specengine.models.rows import Rows
from specengine.models.static_rows import StaticRows
from specengine.models.swap import swap_layers
from specengine.trees.draft_tree import DraftTree
from specengine.verify.attention_kernels import decoding_attention


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs of one pass over n rows.

    Attributes:
        hidden: [n, d], after the final norm.
        features: [n, len(taps) * d], raw outputs of the tapped layers side by side.
    """

    hidden: torch.Tensor
    features: torch.Tensor


class Target:
    """A causal language model with static caches.

    Args:
        model: a Transformers causal model of a supported family, weights loaded; it is changed in
            place and belongs to the Target from here on.
        taps: decoder layers whose outputs a drafter reads.
        options: which weight layouts to use.
        eos_token_ids: ids that end a generation; taken from the model's configuration when None.

    Raises:
        CheckpointError: the architecture is not supported.
        OptionError: an option is not available here, or a tap names no layer.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        taps: Sequence[int] = (),
        options: EngineOptions | None = None,
        eos_token_ids: frozenset[int] | None = None,
    ) -> None:
        register_attention()
        self.layout: Layout = layout_of(model.config)
        self.options = options or EngineOptions()
        self.model = model.eval().requires_grad_(False)
        model.config._attn_implementation = ATTENTION_NAME
        self.embed_tokens = model.model.embed_tokens
        self.dtype = self.embed_tokens.weight.dtype
        self.device = self.embed_tokens.weight.device
        swap_layers(model, self.options)
        self.head = model.lm_head
        self.hidden_size = int(model.config.hidden_size)
        self.vocab_size = int(model.config.vocab_size)
        self.num_layers = int(model.config.num_hidden_layers)
        self.max_positions = int(model.config.max_position_embeddings)
        self.eos_token_ids = (
            _eos(model.config.eos_token_id) if eos_token_ids is None else eos_token_ids
        )
        self._softcap = getattr(model.config, "final_logit_softcapping", None)
        self._layers = list(model.model.layers)
        self._rotary = model.model.rotary_emb
        self._norm = model.model.norm
        self.taps = tuple(taps)
        self._graphs = PassGraphs(self) if self.options.cuda_graphs else None

    @property
    def taps(self) -> tuple[int, ...]:
        """Decoder layers whose outputs `forward` returns as features."""
        return self._taps

    @taps.setter
    def taps(self, taps: Sequence[int]) -> None:
        wrong = [tap for tap in taps if not 0 <= tap < self.num_layers]
        if wrong:
            raise OptionError(
                f"tap {wrong[0]} names no layer of a target with {self.num_layers} layers",
                where="taps",
                fix="use a drafter that was trained for this target",
            )
        self._taps = tuple(taps)

    def parameter_bytes(self) -> int:
        """Bytes of weights that one pass reads: all but the embedding table, the head included."""
        packed = [m for m in self.model.modules() if hasattr(m, "weight_bytes")]
        read = {
            id(p): p for part in (self._layers, [self._norm, self.head]) for p in _parameters(part)
        }
        return sum(p.nbytes for p in read.values()) + sum(m.weight_bytes() for m in packed)

    def new_cache(self, capacity: int) -> TargetCache:
        """Allocate the state of one request.

        Raises:
            RequestError: capacity is not positive.
        """
        if capacity < 1:
            raise RequestError(
                f"asks for {capacity} cache positions", where="prompt", fix="ask for at least one"
            )
        return TargetCache(
            capacity,
            self.layout.attention,
            self.layout.delta,
            self.dtype,
            self.device,
            masked=self._graphs is not None,
        )

    @torch.inference_mode()
    def forward(
        self, cache: TargetCache, tokens: torch.Tensor, tree: DraftTree | None = None
    ) -> Forward:
        """Run n rows after the committed positions; `cache.length` does not move.

        Args:
            cache: the request's state; slots length .. length + n - 1 are overwritten.
            tokens: int64 [n], on any device.
            tree: parents and depths of the rows, or None for a chain.

        Raises:
            RequestError: the rows exceed the cache or the model's positions.
        """
        return self.run(cache, tokens.to(self.device), self._rows(cache, tokens, tree))

    @torch.inference_mode()
    def verify(self, cache: TargetCache, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, V] and features [n, taps * d] of a tree's rows, as one captured pass if asked.

        Raises:
            RequestError: as `forward`.
        """
        tokens = torch.from_numpy(tree.tokens)
        if self._graphs is None:
            forward = self.forward(cache, tokens, tree)
            return self.logits(forward.hidden), forward.features
        self._rows(cache, tokens, tree, device=torch.device("cpu"))
        return self._graphs.run(cache, tree)

    def run(self, cache: TargetCache, tokens: torch.Tensor, rows: Rows | StaticRows) -> Forward:
        """The layers over rows that `cache` knows of; what `forward` and captured passes share.

        Args:
            cache: as `forward`.
            tokens: int64 [n], on the target's device.
            rows: where they go and what they see.
        """
        hidden = self.embed_tokens(tokens)[None]
        rotary = self._rotary_tables(hidden, rows)
        features = []
        with decoding_attention():
            for index, layer in enumerate(self._layers):
                hidden = layer(
                    hidden,
                    attention_mask=None,
                    position_embeddings=rotary[index],
                    rows=rows,
                    store=cache,
                )
                if index in self._taps:
                    features.append((index, hidden[0]))
        by_layer = dict(features)
        tapped = [by_layer[tap] for tap in self._taps]
        joined = torch.cat(tapped, dim=1) if tapped else hidden.new_empty(rows.count, 0)
        return Forward(hidden=self._norm(hidden)[0], features=joined)

    def commit(self, cache: TargetCache, rows: Sequence[int]) -> None:
        """Keep rows of the last pass: row 0 first, each the child of the one before it."""
        with torch.inference_mode():
            cache.commit(rows)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, V] in the model's dtype, with the target's own logit transforms."""
        return self._transform(self.head(hidden))

    lm_head = logits

    @torch.inference_mode()
    def logits_fp32(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, V] with the head computed in float32 from the same weights."""
        head = self.head
        weight = head.plain_weight() if isinstance(head, PrepackedLinear) else head.weight
        chunk = 8192
        rows = hidden.float()
        parts = [
            F.linear(rows, weight[start : start + chunk].float())
            for start in range(0, len(weight), chunk)
        ]
        return self._transform(torch.cat(parts, dim=1))

    def _rotary_tables(self, hidden: torch.Tensor, rows: Rows | StaticRows) -> list[Rotary]:
        """Per layer, in the form that its attention layer takes."""
        tables = self.layout.rotary(self._rotary, hidden, rows.positions())
        if self.options.fused_projections:
            tables = {kind: signed_table(table) for kind, table in tables.items()}
        return [tables[kind] for kind in self.layout.kinds]

    def _transform(self, logits: torch.Tensor) -> torch.Tensor:
        if self._softcap is None:
            return logits
        return torch.tanh(logits / self._softcap) * self._softcap

    def _rows(
        self,
        cache: TargetCache,
        tokens: torch.Tensor,
        tree: DraftTree | None,
        device: torch.device | None = None,
    ) -> Rows:
        count = len(tokens)
        rows = Rows.build(
            cache.length,
            count,
            tree,
            groups=self.layout.groups,
            dtype=self.dtype,
            device=device or self.device,
        )
        deepest = count - 1 if tree is None else int(tree.depth.max())
        if cache.length + deepest >= self.max_positions:
            raise RequestError(
                f"reaches position {cache.length + deepest} of a model with {self.max_positions}",
                where="prompt",
                fix="shorten the prompt or the output limit",
            )
        cache.begin(rows)
        return rows


def _eos(value: int | list[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else value)


def _parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]

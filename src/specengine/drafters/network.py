"""Networks of the block drafters, with their tensors under the published names.

DFlash is a stack of layers over [anchor, mask, ...] that attend to the target's tapped states.
DFlash2 adds filters and a selector to it, DSpark a bias from the previous token. All borrow the
target's embedding and head unless their checkpoint brings its own.
"""

import torch
from torch import nn

from specengine.drafters.layers import BlockLayer, FilteredLayer, RMSNorm, rotary_tables
from specengine.drafters.markov import ConfidenceHead, MarkovHead
from specengine.drafters.records import BlockConfig, DFlash2Config, DFlashConfig, DSparkConfig
from specengine.drafters.vocabulary import add_vocabulary


class CandidateSelector(nn.Module):
    """Low-rank score of (previous token, candidate) pairs, gated by the row's hidden state."""

    def __init__(self, vocabulary: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.empty(vocabulary, rank))
        # A zero successor makes a fresh selector add nothing, so training starts from the unary.
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)
        nn.init.normal_(self.predecessor_codebook, std=0.02)

    def pair_scores(
        self, hidden: torch.Tensor, previous: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """Score candidates [..., K] given previous tokens [..., P] and hidden rows [..., d].

        Returns:
            float32 [..., P, K].
        """
        gate = self.hidden_projection(hidden).float()
        before = self.predecessor_codebook[previous].float() * gate.unsqueeze(-2)
        after = self.successor_codebook[candidates].float()
        return before @ after.transpose(-1, -2)


class BlockNetwork(nn.Module):
    """What DFlash, DFlash2 and DSpark share."""

    layer_kind: type[BlockLayer] = BlockLayer

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.layers = nn.ModuleList(
            self.layer_kind(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        add_vocabulary(self, config)

    def context(self, features: torch.Tensor) -> torch.Tensor:
        """Tapped target states [..., n, taps * d] to context rows [..., n, d]."""
        return self.hidden_norm(self.fc(features))

    def context_keys_values(
        self, context: torch.Tensor, positions: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per layer, rotated keys and values [..., kv_heads, n, D] of context rows [..., n, d]."""
        tables = rotary_tables(positions, self.config)
        pairs = (layer.self_attn.keys_values(context, tables) for layer in self.layers)
        return [(keys.transpose(-3, -2), values.transpose(-3, -2)) for keys, values in pairs]

    def forward(
        self,
        embedded: torch.Tensor,
        starts: torch.Tensor,
        context: list[tuple[torch.Tensor, torch.Tensor]],
        context_positions: torch.Tensor,
    ) -> torch.Tensor:
        """Run the blocks.

        Args:
            embedded: [S, A, B, d], embeddings of [anchor, mask, ...].
            starts: int64 [S, A], position of each anchor; context at or after it is unseen.
            context: per layer keys and values [S, kv_heads, n, D].
            context_positions: int64 [n].

        Returns:
            [S, A, B, d], final-normed; row k predicts the token at start + k, or the one after
            it where slots are shifted.
        """
        width = embedded.shape[2]
        positions = starts[..., None] + torch.arange(width, device=starts.device)
        tables = rotary_tables(positions, self.config)
        before = (context_positions < starts[..., None]).unsqueeze(2)
        rows = embedded * self.config.input_embedding_scale
        for index, layer in enumerate(self.layers):
            window = self.config.window(index)
            visible = before
            if window is not None:
                visible = before & (positions[..., None] - context_positions < window)
            rows = layer(rows, tables, context[index], visible)
        return self.norm(rows)

    def transform(self, logits: torch.Tensor) -> torch.Tensor:
        """Head logits to unary scores U in float32: multiplier, then soft cap."""
        unary = logits.float() * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return unary if cap is None else cap * torch.tanh(unary / cap)


class DFlashNetwork(BlockNetwork):
    """Everything that a DFlash checkpoint holds."""

    config: DFlashConfig


class DFlash2Network(BlockNetwork):
    """Everything that a DFlash2 checkpoint holds."""

    config: DFlash2Config
    layer_kind = FilteredLayer

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__(config)
        self.candidate_selector = CandidateSelector(
            config.vocab_size, config.hidden_size, config.selector_rank
        )


class DSparkNetwork(BlockNetwork):
    """Everything that a DSpark checkpoint holds."""

    config: DSparkConfig

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__(config)
        self.markov_head = MarkovHead(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None

"""DSpark's heads: a bias from the previous token, and the chance that a token is accepted."""

import torch
from torch import nn

from specengine.drafters.records import DSparkConfig


class CandidateRows(nn.Linear):
    """A linear layer of which a draft reads single rows: another layout would hide them."""


class MarkovHead(nn.Module):
    """Low-rank bias of a position's logits, given the token before it.

    `vanilla` looks at that token alone and `gated` at the row's hidden state, too; both hold for
    every pair of candidates. `rnn` carries a state along the path, so its bias belongs to one path.
    """

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        rank, hidden = config.markov_rank, config.hidden_size
        self.rank, self.head_type = rank, config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = CandidateRows(
            rank, config.draft_vocab_size or config.vocab_size, bias=False
        )
        # Zero second factors make a fresh head add nothing, so training starts from the unary.
        nn.init.zeros_(self.markov_w2.weight)
        if self.head_type == "gated":
            self.gate_proj = nn.Linear(hidden + rank, rank)
        elif self.head_type == "rnn":
            self.joint_proj = nn.Linear(2 * rank + hidden, 3 * rank)

    def new_state(self, like: torch.Tensor) -> torch.Tensor:
        """The state before the first position: zeros [..., rank] for hidden rows [..., d]."""
        return like.new_zeros(*like.shape[:-1], self.rank)

    def latent(
        self, previous: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the second factor multiplies.

        Args:
            previous: int64 [...], the tokens before.
            hidden: [..., d], final-normed rows.
            state: [..., rank]; only `rnn` reads and changes it.

        Returns:
            Latent [..., rank] and the next state.
        """
        token = self.markov_w1(previous)
        if self.head_type == "vanilla":
            return token, state
        if self.head_type == "gated":
            gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, token), dim=-1)))
            return gate * token, state
        joint = self.joint_proj(torch.cat((state, token, hidden), dim=-1))
        gate, candidate, out = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(out), gate * state + (1.0 - gate) * torch.tanh(candidate)


class ConfidenceHead(nn.Module):
    """Estimate of the chance that a token is accepted if all before it were."""

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_head_with_markov
        width = config.hidden_size + (config.markov_rank if self.with_markov else 0)
        self.proj = nn.Linear(width, 1)

    def scores(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Log-odds, float32 [...], of rows [..., d] after tokens embedded as [..., rank]."""
        features = torch.cat((hidden, previous), dim=-1) if self.with_markov else hidden
        return self.proj(features).float().squeeze(-1)

    def forward(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Probabilities; shapes as in `scores`."""
        return torch.sigmoid(self.scores(hidden, previous))

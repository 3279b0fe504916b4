"""The frozen target as training sees it: batched, with tapped layers."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from specengine.errors import CheckpointError


@dataclass
class Teacher:
    """A causal language model and its tokenizer, in evaluation mode, without gradients."""

    model: Any
    tokenizer: Any
    device: torch.device
    _tapped: dict[int, torch.Tensor] = field(default_factory=dict)
    _watched: set[int] = field(default_factory=set)

    @property
    def layers(self) -> nn.ModuleList:
        return self.model.model.layers

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def stop_ids(self) -> frozenset[int]:
        stop = self.model.generation_config.eos_token_id or self.config.eos_token_id
        return frozenset(stop if isinstance(stop, list) else [stop])

    @property
    def embed_tokens(self) -> Any:
        """The embedding's table, as drafters borrow it."""
        return self.model.get_input_embeddings()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the embedding as they are: drafters read them without a model's own scale."""
        return functional.embedding(tokens, self.embed_tokens.weight)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.get_output_embeddings()(hidden)

    def _watch(self, taps: tuple[int, ...]) -> None:
        for tap in set(taps) - self._watched:
            self.layers[tap].register_forward_hook(self._hook(tap))
            self._watched.add(tap)

    def _hook(self, tap: int) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._tapped[tap] = output[0] if isinstance(output, tuple) else output

        return keep

    @torch.no_grad()
    def states(
        self, tokens: torch.Tensor, taps: tuple[int, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """States of right-padded token rows [S, n].

        Padding stands to the right, so that the causal mask alone hides it from real tokens.

        Returns:
            Tapped states [S, n, len(taps) * d], and what the head reads, [S, n, d].
        """
        self._watch(taps)
        final = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state
        features = torch.cat([self._tapped[tap] for tap in taps], dim=-1)
        self._tapped.clear()
        return features, final


def load_teacher(folder: Path, device: str, dtype: torch.dtype = torch.bfloat16) -> Teacher:
    """Load a Transformers folder.

    Raises:
        CheckpointError: the folder does not hold a causal language model with a tokenizer.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot be loaded ({error})", where=str(folder), fix="give a Transformers folder"
        ) from error
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    return Teacher(model=model, tokenizer=tokenizer, device=torch.device(device))

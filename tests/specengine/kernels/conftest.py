"""Heads and hidden states that are hard for a certified argmax, made on a CPU."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

Case = tuple[torch.Tensor, torch.Tensor]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


def peaked(channels: int, width: int) -> Case:
    """Each of eight states has a row that stands out, as in a trained model."""
    head, hidden = draw(channels, width, seed=1), draw(8, width, seed=2)
    for i in range(8):
        head[channels * (i + 1) // 9] = (hidden[i] * 0.3).bfloat16()
    return head, hidden


def near_ties(channels: int, width: int) -> Case:
    """A head whose best rows for state i differ in a last bit of one weight, or not at all."""
    head, hidden = draw(channels, width, seed=1), draw(4, width, seed=2)
    for i in range(4):
        rows = torch.arange(3 + i, channels, 97)
        head[rows] = hidden[i] * 2
        changed = head[rows[1::2], 5 * i].view(torch.int16) + 1
        head[rows[1::2], 5 * i] = changed.view(torch.bfloat16)
    return head, hidden


def not_numbers(channels: int, width: int) -> Case:
    """Infinities in the head, in one state, and NaN in another; infinite logits of both signs."""
    head, hidden = draw(channels, width, seed=3), draw(6, width, seed=4)
    head[17, 3], head[channels - 2, 0] = torch.inf, -torch.inf
    hidden[0, 3], hidden[0, 0] = 1.0, -1.0  # two logits of +inf
    hidden[1, 3], hidden[1, 0] = -1.0, 1.0
    hidden[2, 7] = torch.nan
    hidden[3, 9] = torch.inf
    hidden[4] = 0.0  # 0 * inf
    return head, hidden


def extremes(channels: int, width: int) -> Case:
    """Rows near overflow and below the smallest normal number; tiny, huge and zero states."""
    head, hidden = draw(channels, width, seed=5), draw(5, width, seed=6)
    head[3::7] *= 2.0**120
    head[1::7] *= 2.0**-125
    hidden[1] *= 2.0**-120
    hidden[2] *= 2.0**60
    hidden[3] = 0.0
    return head, hidden


@pytest.fixture(scope="session")
def heads() -> SimpleNamespace:
    """`draw`, and functions of (channels, width) to a head and hidden states, both bf16."""
    makers: list[Callable[..., object]] = [draw, peaked, near_ties, not_numbers, extremes]
    return SimpleNamespace(**{maker.__name__: maker for maker in makers})

"""Matrices that formats must carry."""

from collections.abc import Callable

import pytest
import torch

ALL_PATTERNS = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.int16), right.view(torch.int16))


def _natural(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    """Normal weights whose spread differs by channel, as trained ones have."""
    generator = torch.Generator().manual_seed(seed)
    spread = 0.02 * torch.exp(0.5 * torch.randn(rows, 1, generator=generator))
    return (torch.randn(rows, width, generator=generator) * spread).bfloat16()


def hard_matrices() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    mixed = ALL_PATTERNS[torch.randperm(2**16, generator=generator)]
    body = _natural(256, 448)
    sparse = _natural(200, 320)
    sparse[torch.rand(200, 320, generator=generator) < 0.6] = 0.0
    outlier = _natural(130, 192)
    outlier[::3, 5] = 300.0
    return {
        "every_pattern_by_channel": ALL_PATTERNS.view(256, 256),
        "every_pattern_across": ALL_PATTERNS.view(256, 256).T.contiguous(),
        "every_pattern_mixed": mixed.view(512, 128),
        "zeros": torch.zeros(200, 70).bfloat16(),
        "negative_zeros": -torch.zeros(130, 64).bfloat16(),
        "subnormals": torch.full((3, 65), 2.0**-130).bfloat16(),
        "not_finite": torch.tensor([float("nan"), float("inf"), -float("inf")]).bfloat16()[None],
        "one": torch.ones(1, 1).bfloat16(),
        "mostly_zero": sparse,
        "outliers": outlier,
        "small_block": torch.cat((body, _natural(256, 64) * 2.0**-10), dim=1),
        "natural_ragged": _natural(129, 1000),
    }


@pytest.fixture(params=hard_matrices().keys())
def matrix(request: pytest.FixtureRequest) -> torch.Tensor:
    return hard_matrices()[request.param]


@pytest.fixture
def same_bits() -> Callable[[torch.Tensor, torch.Tensor], bool]:
    """Whether two bfloat16 tensors hold the same bits, NaN and signs of zeros included."""
    return _same_bits


@pytest.fixture
def natural() -> Callable[..., torch.Tensor]:
    """Draw a matrix [rows, width] as trained ones are."""
    return _natural

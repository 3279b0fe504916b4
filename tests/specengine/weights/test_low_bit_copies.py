"""Lossy copies: rounding, size, and the bound of the head's."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.errors import OptionError
from specengine.weights import decode_low_bit, encode_head, encode_low_bit
from specengine.weights.low_bit import LAYOUTS, round_to_codes, values_of, values_of_codes

Natural = Callable[..., torch.Tensor]


@pytest.mark.parametrize("mantissa", [3, 4, 5])
def test_codes_are_the_nearest_values(mantissa: int) -> None:
    codes = torch.arange(4 << mantissa, dtype=torch.int16)
    values = values_of_codes(codes, mantissa)
    assert bool((values.diff() > 0).all())
    assert values[0] == 0
    assert values[1 << mantissa] == 1
    assert values[-1] == 8 - 2.0 ** (2 - mantissa)
    one = torch.ones(1)
    assert torch.equal(round_to_codes(values[None], one, mantissa)[0], codes)
    for low, high in pairwise(values.tolist()):
        for share in (0.49, 0.51):
            point = torch.tensor([[low + share * (high - low)]])
            got = values_of_codes(round_to_codes(point, one, mantissa), mantissa)
            assert got.item() == (low if share < 0.5 else high)
    assert round_to_codes(torch.tensor([[100.0]]), one, mantissa).item() == codes[-1]


@pytest.mark.parametrize(
    ("name", "bits", "error"), [("e2m5", 8, 0.0085), ("e2m4", 7, 0.016), ("e2m3", 6, 0.031)]
)
def test_size_and_error(name: str, bits: int, error: float) -> None:
    drawn = torch.randn(256, 2048, generator=torch.Generator().manual_seed(0)).bfloat16()
    copy = encode_low_bit(drawn, name)
    assert 8 * copy.records.numel() == bits * drawn.numel()
    mantissa, exponent = torch.frexp(copy.scale)
    assert bool((mantissa == 0.5).all()), exponent
    residual = decode_low_bit(copy) - drawn.float()
    assert residual.square().mean().sqrt() < error


def test_copies_survive_any_matrix(matrix: torch.Tensor) -> None:
    for name in LAYOUTS:
        copy = encode_low_bit(matrix, name)
        decoded = decode_low_bit(copy)
        assert decoded.shape == matrix.shape
        assert bool(decoded.isfinite().all())


def test_unknown_copy_is_refused(natural: Natural) -> None:
    with pytest.raises(OptionError, match="use e2m5, e2m4, e2m3"):
        encode_low_bit(natural(1, 1), "e4m3")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), heavy=st.booleans(), magnitude=st.integers(-40, 30))
def test_head_bound_holds(seed: int, heavy: bool, magnitude: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(140, 96, generator=generator)
    if heavy:
        rows = rows**5
    rows = (rows * 2.0**magnitude).bfloat16()
    hidden = torch.randn(96, generator=generator).double()
    head = encode_head(rows)
    copied = values_of(head.copy).double() * head.copy.scale[:140, None].double()
    approximate = copied @ hidden
    bound = head.residual_norm[:140].double() * hidden.norm()
    error = (rows.double() @ hidden - approximate).abs()
    assert bool((error <= bound * (1 + 1e-12)).all())
    residual = (rows.double() - copied).norm(dim=1)
    assert bool((head.residual_norm[:140].double() >= residual).all())
    assert bool((head.weight_norm[:140].double() >= rows.double().norm(dim=1)).all())
    assert bool((head.residual_norm[:140] <= residual.float() * 1.00001 + 1e-44).all())


def test_head_rows_that_are_not_finite_are_never_discarded(natural: Natural) -> None:
    rows = natural(130, 64)
    rows[3, 5], rows[129, 0] = float("nan"), float("inf")
    head = encode_head(rows)
    infinite = head.residual_norm.isinf().nonzero().flatten().tolist()
    assert infinite == [3, 129]
    assert not head.residual_norm[130:].any()

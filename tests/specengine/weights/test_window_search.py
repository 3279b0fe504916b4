"""The quick search for windows and the grouped bit operations equal the plain rules."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specengine.weights.fragments import (
    coordinates,
    pack_lanes,
    places_by_position,
    positions_by_place,
    unpack_lanes,
)
from specengine.weights.layout import E6, E7, E8, REGISTERS, F, Layout, N, X
from specengine.weights.runs import extracting, placing, rows_of_words
from specengine.weights.window import choose_windows, plain_windows
from specengine.weights.window_search import counts_of_rows

LAYOUTS = {"F": F, "N": N, "X": X, "E8": E8, "E7": E7, "E6": E6}


def _spread(seed: int) -> torch.Tensor:
    """Channels with few or many binades, at any place of the exponent's range."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = (int(n) for n in torch.randint(1, 200, (2,), generator=generator))
    power = 1 + 10 * torch.rand(rows, 1, generator=generator)
    centre = 200 * torch.rand(rows, 1, generator=generator) - 130
    drawn = torch.randn(rows, width, generator=generator)
    return (drawn.sign() * drawn.abs() ** power * 2.0**centre).bfloat16()


def _check(matrix: torch.Tensor, listed_bits: int) -> None:
    bits = matrix.contiguous().view(torch.int16)
    found = choose_windows(bits, listed_bits=listed_bits)
    wanted = plain_windows(bits & 0x7FFF, listed_bits)
    assert torch.equal(found.tops, wanted.tops)
    assert torch.equal(found.lower, wanted.lower)
    assert torch.equal(found.outside, wanted.outside)
    assert bool(listed_bits) or not found.lower.numel()


@pytest.mark.parametrize("listed_bits", [0, 8])
def test_windows_are_those_of_the_plain_rule(matrix: torch.Tensor, listed_bits: int) -> None:
    _check(matrix, listed_bits)


@pytest.mark.parametrize("listed_bits", [0, 8])
@pytest.mark.parametrize("seed", range(12))
def test_windows_of_any_spread(seed: int, listed_bits: int) -> None:
    _check(_spread(seed), listed_bits)


def test_ties_go_to_the_lowest_window() -> None:
    """Of 18 binades two are outside: 0 and 20 for a top of 16, 16 and 20 for one of 15."""
    exponents = torch.cat((torch.tensor([0.0, 20.0]), torch.arange(1, 17).float()))
    bits = (2.0**exponents).bfloat16()[None].view(torch.int16)
    assert choose_windows(bits).tops.tolist() == [127 + 15]


@pytest.mark.parametrize("width", [0, 1, 7, 8, 64, 2040, 2048, 65536])
def test_flags_are_counted_at_any_width(width: int) -> None:
    """Rows of nothing else are the most that a byte of a word has to count."""
    rng = np.random.default_rng(width)
    flags = rng.random((6, width)) < np.array([0, 0.01, 0.5, 0.99, 1, 1])[:, None]
    assert counts_of_rows(flags).tolist() == [np.count_nonzero(row) for row in flags]


@pytest.mark.parametrize("name", LAYOUTS)
def test_grouped_bit_fields_are_those_of_the_layout(name: str) -> None:
    layout: Layout = LAYOUTS[name]
    rows = rows_of_words(layout)
    assert len({*range(REGISTERS), *rows}) <= REGISTERS + layout.words
    for runs in (placing(layout), extracting(layout)):
        pairs = [
            (source, target, run.shift)
            for run in runs
            for source, target in zip(range(99)[run.sources], range(99)[run.targets], strict=True)
        ]
        pieces = [
            (piece.register, rows[piece.word], piece.shift)
            if runs is placing(layout)
            else (rows[piece.word], piece.register, -piece.shift)
            for piece in layout.pieces
        ]
        assert sorted(pairs) == sorted(pieces)
        assert len(runs) < len(pieces)


@pytest.mark.parametrize("name", LAYOUTS)
def test_records_of_any_width_give_their_lanes_back(
    name: str, natural: Callable[..., torch.Tensor]
) -> None:
    layout = LAYOUTS[name]
    kept = 0
    for piece in layout.pieces:
        kept |= piece.mask & 0xFFFF
    for blocks in (1, 80, 161):
        bits = natural(256, 64 * blocks, blocks).view(torch.int16)
        records = torch.full((2 * blocks, layout.record_bytes + 8), 7, dtype=torch.uint8)
        pack_lanes(bits, layout, records[:, : layout.record_bytes])
        back = unpack_lanes(records[:, : layout.record_bytes], layout, 2)
        mask = torch.tensor(kept, dtype=torch.int32).to(torch.int16)
        assert torch.equal(back, bits & mask)
        assert bool((records[:, layout.record_bytes :] == 7).all())
        base = torch.arange(256, dtype=torch.int16)
        added = unpack_lanes(records[:, : layout.record_bytes], layout, 2, base)
        assert torch.equal(added, back + base[:, None])


def test_positions_and_places_are_inverse() -> None:
    position = torch.arange(8192)
    channel, column = coordinates(position)
    assert torch.equal(places_by_position(), 64 * channel + column)
    assert torch.equal(positions_by_place()[places_by_position()], position)

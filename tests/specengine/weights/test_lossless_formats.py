"""The contract of every lossless format."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.errors import OptionError
from specengine.weights import (
    FORMATS,
    Packed,
    check,
    decode,
    decode_checked,
    decode_view,
    encode,
    join,
)
from specengine.weights import registry as formats

Natural = Callable[..., torch.Tensor]
SameBits = Callable[[torch.Tensor, torch.Tensor], bool]
PATTERNS = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_survives(name: str, matrix: torch.Tensor, same_bits: SameBits) -> None:
    packed = encode(matrix, name)
    check(packed, "matrix")
    checked = decode_checked(packed, "matrix")
    assert same_bits(decode(packed), matrix)
    assert torch.equal(checked, matrix.view(torch.int16))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 140),
    width=st.integers(1, 140),
    seed=st.integers(0, 2**31),
    rare=st.floats(0, 1),
)
def test_any_matrix_survives(name: str, rows: int, width: int, seed: int, rare: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    usual = torch.randn(rows, width, generator=generator).bfloat16()
    other = PATTERNS[torch.randint(2**16, (rows, width), generator=generator)]
    drawn = torch.where(torch.rand(rows, width, generator=generator) < rare, other, usual)
    packed = encode(drawn, name)
    check(packed, "drawn")
    decode_checked(packed, "drawn")
    assert torch.equal(decode(packed).view(torch.int16), drawn.view(torch.int16))


@pytest.mark.parametrize("name", FORMATS)
def test_every_pattern_survives_in_every_place(name: str) -> None:
    """A record has 8192 places; eight rotations put every pattern in each residue of them."""
    flat = PATTERNS.view(torch.int16)
    for turn in range(0, 2**16, 8192):
        turned = flat.roll(turn + 1).view(torch.bfloat16).view(1024, 64)
        back = decode(encode(turned, name))
        assert torch.equal(back.view(torch.int16), turned.view(torch.int16))


@pytest.mark.parametrize("name", FORMATS)
def test_places_do_not_share_bits(name: str) -> None:
    """Each place of a record alone holds a weight of every sign, binade and mantissa."""
    places = torch.randperm(128 * 64, generator=torch.Generator().manual_seed(3)).view(128, 64)
    for mantissa in (0x00, 0x7F, 0x2A):
        bits = (0x3F80 - 128 * (places % 16)) | mantissa
        signed = torch.where(places % 3 == 0, bits - 2**15, bits)
        drawn = signed.to(torch.int16).view(torch.bfloat16)
        assert torch.equal(decode(encode(drawn, name)).view(torch.int16), signed.to(torch.int16))


@pytest.mark.parametrize(("name", "most"), [("w12", 12.03), ("w12n", 12.03), ("w11s", 11.35)])
def test_natural_weights_are_small(name: str, most: float, natural: Natural) -> None:
    drawn = natural(256, 5120)
    assert 8 * encode(drawn, name).nbytes / drawn.numel() <= most


@pytest.mark.parametrize("name", FORMATS)
def test_stretches_join_to_the_whole(
    name: str, natural: Natural, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = natural(700, 200)
    whole = encode(drawn, name)
    monkeypatch.setattr(formats, "STRETCH", 128 * 200 * 2)
    pieces = encode(drawn, name)
    again = join([whole.stretch(0, 2), whole.stretch(2, 3), whole.stretch(5, 1)])
    for other in (pieces, again):
        assert other.shape == whole.shape
        for key, array in whole.arrays().items():
            assert torch.equal(other.arrays()[key], array), key


@pytest.mark.parametrize("name", FORMATS)
def test_fused_projections_are_concatenated_records(name: str, natural: Natural) -> None:
    parts = [natural(256, 128, seed) for seed in range(3)]
    joined = join([encode(part, name) for part in parts])
    check(joined, "joined")
    assert torch.equal(decode(joined), torch.cat(parts))


def test_view_keeps_sign_binade_and_three_mantissa_bits(natural: Natural) -> None:
    drawn = natural(200, 300)
    packed = encode(drawn, "w12n")
    seen = decode_view(packed)
    kept = drawn.view(torch.int16).bitwise_and(-16)
    whole = kept.bitwise_or(8).view(torch.bfloat16)
    assert (seen != whole).sum() <= packed.escapes.shape[0]
    relative = ((seen - drawn).float().abs() / drawn.float().abs())[drawn != 0]
    assert relative.median() < 2**-4


def test_view_reads_nothing_but_the_view(natural: Natural) -> None:
    packed = encode(natural(128, 128), "w12n")
    before = decode_view(packed)
    packed.records.view(-1, 12288)[:, 8192:] = 0xA5
    assert torch.equal(decode_view(packed), before)


def test_crowded_lists_become_escapes(natural: Natural, same_bits: SameBits) -> None:
    """One block of inputs is 10 binades below the rest: its records cannot list every weight."""
    drawn = torch.cat((natural(128, 960), natural(128, 64, 1) * 2.0**-9), dim=1)
    packed = encode(drawn, "w11s")
    check(packed, "drawn")
    assert int(packed.record_offsets.diff().max()) == 12288 // 16
    assert int(packed.escape_offsets.diff()[-1]) > 4000
    assert same_bits(decode(packed), drawn)


def test_records_have_one_size_unless_a_list_is_long(
    natural: Natural, same_bits: SameBits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever stretch has the long lists, the others begin where it lets them."""
    monkeypatch.setattr(formats, "STRETCH", 128 * 1024)
    drawn = natural(384, 1024)
    assert encode(drawn, "w11s").record_bytes() == 11520
    assert encode(drawn, "w12").record_bytes() == 0
    for stretch in range(3):
        crowded = drawn.clone()
        crowded[128 * stretch + 5, 64:128] *= 2.0**-9
        crowded[128 * stretch + 6 : 128 * stretch + 11, 64:128] *= 2.0**-10
        packed = encode(crowded, "w11s")
        check(packed, "crowded")
        assert packed.record_bytes() == 0
        assert same_bits(decode(packed), crowded)


def test_channels_of_zeros_cost_no_escape() -> None:
    drawn = torch.zeros(128, 64).bfloat16()
    drawn[3] = -0.0
    for name in FORMATS:
        packed = encode(drawn, name)
        assert packed.escapes.shape[0] == 0
        assert not packed.scale.any()


def test_window_covers_the_most_weights() -> None:
    """Against counting every window of a channel by hand."""
    generator = torch.Generator().manual_seed(0)
    for spread in (1.0, 4.0, 8.0):
        exponents = (127 + spread * torch.randn(64, 200, generator=generator)).int().clamp(0, 255)
        drawn = (exponents << 7).to(torch.int16).view(torch.bfloat16)
        packed = encode(drawn, "w12")
        for row in range(64):
            inside = [
                int(((exponents[row] >= top - 15) & (exponents[row] <= top)).sum())
                for top in range(16, 255)
            ]
            mine = int((packed.escapes[:, 0] & 0xFFFF).eq(row).sum())
            assert mine == 200 - max(inside)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 2),
        torch.zeros(4).bfloat16(),
        torch.zeros(2, 0).bfloat16(),
        torch.zeros(0, 2).bfloat16(),
        torch.zeros(1, 2**16 + 1).bfloat16(),
    ],
)
def test_other_tensors_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(OptionError, match="cannot be packed"):
        encode(wrong, "w12")


def test_unknown_format_is_refused() -> None:
    with pytest.raises(OptionError, match="use w12, w12n, w11s"):
        encode(torch.zeros(1, 1).bfloat16(), "w13")


def test_moving_keeps_every_array(natural: Natural) -> None:
    packed = encode(natural(128, 64), "w11s")
    moved = packed.to("cpu")
    assert isinstance(moved, Packed)
    assert moved.arrays().keys() == packed.arrays().keys()

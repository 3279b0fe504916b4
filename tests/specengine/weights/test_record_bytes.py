"""Records byte by byte, against an oracle that follows the layout one weight at a time."""

from collections.abc import Callable

import pytest
import torch

from specengine.weights import Packed, encode, encode_low_bit
from specengine.weights import layout as layouts

Natural = Callable[..., torch.Tensor]
MASK = 0x07FF


@pytest.mark.parametrize("name", ["F", "N", "X", "E8", "E7", "E6"])
def test_fields_are_disjoint_and_complete(name: str) -> None:
    layout = getattr(layouts, name)
    used = [0] * layout.words
    kept = [0] * layouts.REGISTERS
    for piece in layout.pieces:
        field = piece.mask << piece.shift if piece.shift >= 0 else piece.mask >> -piece.shift
        assert field < 2**32
        assert field.bit_count() == piece.mask.bit_count()
        assert used[piece.word] & field == 0
        assert kept[piece.register] & piece.mask == 0
        used[piece.word] |= field
        kept[piece.register] |= piece.mask
    assert len(set(kept)) == 1
    bits = kept[0].bit_count() // 2
    assert 32 * layout.words == 32 * bits
    assert all(word == 2**32 - 1 for word in used)


def words_of(record: torch.Tensor, base: int, planes: tuple[int, ...], thread: int) -> list[int]:
    """The words of one thread, from planes of so many words each that begin at byte `base`."""
    words = []
    for width in planes:
        at = base + 4 * width * thread
        octets = bytes(record[at : at + 4 * width].tolist())
        words += [int.from_bytes(octets[4 * i : 4 * i + 4], "little") for i in range(width)]
        base += 128 * 4 * width
    return words


def decode_unnested(words: list[int], register: int) -> int:
    step, a = divmod(register, 4)
    w = words[3 * step : 3 * step + 3]
    if a < 3:
        return w[a] & 0x87FF87FF
    low = (w[0] >> 4 & 0x07800780) | (w[1] >> 8 & 0x00780078) | (w[2] >> 11 & 0x00070007)
    return low | (w[2] << 1 & 0x80008000)


def decode_nested(view: list[int], low: list[int], register: int) -> int:
    pair, odd = divmod(register, 2)
    nibble = low[pair // 2] >> (8 * (pair % 2) + 4 * odd) & 0x000F000F
    word = view[pair]
    if not odd:
        return word & 0x87F087F0 | nibble
    rotated = word >> 4 | (word & 0xF) << 28
    return rotated & 0x87808780 | (word << 4 & 0x00700070) | nibble


def decode_sparse(words: list[int], plane: int, register: int) -> int:
    top = (plane >> register & 0x00010001) << 10
    if register < 11:
        return words[register] & 0x83FF83FF | top
    j = register - 11
    low = (words[2 * j] >> 5 & 0x03E003E0) | (words[2 * j + 1] >> 10 & 0x001F001F)
    return low | (words[10] << (5 - j) & 0x80008000) | top


def plane_of(record: torch.Tensor) -> list[int]:
    """The 256 words of top bits that a kernel rebuilds."""
    counts, position = record[11264:11296].tolist(), 11296
    plane = [2**32 - 1] * 256
    for block, count in enumerate(counts):
        for listed in record[position : position + count].tolist():
            plane[8 * block + (listed >> 5)] &= ~(1 << (listed & 31))
        position += count
    assert not record[position:].any()
    return plane


def lane_of(packed: Packed, channel: int, column: int) -> int:
    """The lane that a kernel decodes for a weight, sign and code."""
    index = channel // 128 * packed.blocks + column // 64
    if packed.record_offsets is None:
        record = packed.records[12288 * index : 12288 * (index + 1)]
    else:
        low, high = (16 * int(packed.record_offsets[index + i]) for i in (0, 1))
        record = packed.records[low:high]
    half, inside = divmod(channel % 128, 64)
    step, inner = divmod(column % 64, 16)
    thread = 32 * (inside // 16) + 4 * (inside % 8) + inner % 8 // 2
    register = 4 * step + inside % 16 // 8 + 2 * (inner // 8)
    if packed.format == "w12":
        register_bits = decode_unnested(words_of(record, 6144 * half, (4, 4, 4), thread), register)
    elif packed.format == "w12n":
        view = words_of(record, 4096 * half, (4, 4), thread)
        low_bits = words_of(record, 8192 + 2048 * half, (4,), thread)
        register_bits = decode_nested(view, low_bits, register)
    else:
        words = words_of(record, 5632 * half, (4, 4, 2, 1), thread)
        register_bits = decode_sparse(words, plane_of(record)[128 * half + thread], register)
    return register_bits >> (16 * (column % 2)) & 0xFFFF


@pytest.mark.parametrize("name", ["w12", "w12n", "w11s"])
def test_kernels_find_each_weight(name: str, natural: Natural) -> None:
    drawn = natural(300, 200)
    packed = encode(drawn, name)
    escaped = {
        (int(entry[0]) & 0xFFFF, int(entry[0]) >> 16): int(entry[1])
        for entry in packed.escapes[: int(packed.escape_offsets[packed.blocks])]
    }
    generator = torch.Generator().manual_seed(5)
    for index in torch.randint(300 * 200, (150,), generator=generator).tolist():
        channel, column = divmod(index, 200)
        lane = lane_of(packed, channel, column)
        top = int(packed.scale[channel : channel + 1].view(torch.int32)) >> 23
        value = (lane & 0x8000) | ((lane & MASK) + 128 * (top - 15))
        true = int(drawn[channel, column].view(torch.int16)) & 0xFFFF
        if channel < 128 and (channel, column) in escaped:
            entry = escaped[channel, column]
            assert (entry & 0xFFFF, entry >> 16 & 0xFFFF) == (true, value)
        elif channel < 128:
            assert value == true
        # What a kernel computes: the lane with a constant exponent top, times the scale.
        float_lane = torch.tensor([lane | 0x3800 if lane < 2**15 else (lane | 0x3800) - 2**16])
        product = float_lane.to(torch.int16).view(torch.bfloat16).float() * packed.scale[channel]
        assert int(product.bfloat16().view(torch.int16)) & 0xFFFF == value


@pytest.mark.parametrize("name", ["w12", "w12n", "w11s"])
def test_padding_is_harmless(name: str, natural: Natural) -> None:
    """Beyond the matrix lanes are finite and scales are 0; nothing is escaped or listed."""
    packed = encode(natural(100, 40), name)
    assert not packed.scale[100:].any()
    assert lane_of(packed, 5, 63) & 0x7FFF in (0, 1024)
    assert lane_of(packed, 127, 3) & 0x7FFF in (0, 1024)


@pytest.mark.parametrize(("name", "mantissa"), [("e2m5", 5), ("e2m4", 4), ("e2m3", 3)])
def test_low_bit_words(name: str, mantissa: int, natural: Natural) -> None:
    """Rebuild registers of one thread by the shifts that kernels use."""
    copy = encode_low_bit(natural(128, 64), name)
    layout, planes = {
        "e2m5": (layouts.E8, (4, 4)),
        "e2m4": (layouts.E7, (4, 2, 1)),
        "e2m3": (layouts.E6, (4, 2)),
    }[name]
    thread = 77
    words = words_of(copy.records[0], layout.record_bytes // 2, planes, thread)
    registers = [0] * 16
    for piece in layout.pieces:
        word = words[piece.word]
        moved = word >> piece.shift if piece.shift >= 0 else word << -piece.shift
        registers[piece.register] |= moved & piece.mask
    channel = 64 + 16 * (thread // 32) + thread % 32 // 4
    column = 2 * (thread % 4)
    lane = registers[0] & 0xFFFF
    code = (lane & 0x7FFF) >> (7 - mantissa)
    fraction = (code & (2**mantissa - 1)) / 2**mantissa
    exponent = code >> mantissa
    value = fraction if exponent == 0 else (1 + fraction) * 2 ** (exponent - 1)
    from specengine.weights import decode_low_bit

    signed = -value if lane >= 2**15 else value
    assert decode_low_bit(copy)[channel, column] == signed * copy.scale[channel]

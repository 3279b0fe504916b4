"""From a matrix to the registers of tensor-core threads and into records, and back. Plain torch.

Inside a tile of 128 channels and a block of 64 inputs, register p = 4 * step + a (step and a from 0
to 3) of thread t (0..127) of half h holds the weights of

    channel = 64 * h + 16 * (t // 32) + (t % 32) // 4 + 8 * (a % 2)
    input   = 16 * step + 2 * (t % 4) + 8 * (a // 2) + lane

which is how `wgmma` and, warp by warp, `mma.m16n8k16` expect the A operand. The functions work on
any device; bits pass through unchanged.
"""

import torch

from specengine.weights.layout import BLOCK, REGISTERS, TILE, Layout, Piece, planes


def to_registers(lanes: torch.Tensor) -> torch.Tensor:
    """Order 16-bit lanes by register.

    Args:
        lanes: int16 [C, K], contiguous, C a multiple of 128 and K of 64.

    Returns:
        int32 [16, records, 2, 128]; records by tile, then by block.
    """
    channels, width = lanes.shape
    tiles, blocks = channels // TILE, width // BLOCK
    # Four threads own neighbouring 32-bit pairs: 16 bytes that stay together.
    pairs = lanes.view(torch.complex128).view(tiles, 2, 4, 2, 8, blocks, 4, 2)
    ordered = pairs.new_empty((4, 2, 2, tiles, blocks, 2, 4, 8))
    for tile in range(tiles):
        ordered[:, :, :, tile] = pairs[tile].permute(5, 6, 2, 4, 0, 1, 3)
    return ordered.view(torch.int32).view(REGISTERS, tiles * blocks, 2, 128)


def from_registers(registers: torch.Tensor, tiles: int) -> torch.Tensor:
    """The inverse of `to_registers`: int16 [tiles * 128, K]."""
    blocks = registers.shape[1] // tiles
    ordered = registers.view(torch.complex128).view(4, 2, 2, tiles, blocks, 2, 4, 8)
    pairs = ordered.permute(3, 5, 6, 2, 7, 4, 0, 1).contiguous()
    return pairs.view(torch.int16).view(tiles * TILE, blocks * BLOCK)


def coordinates(position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Channel and input inside a record of a lane, from 32 * (128 * half + thread) + 16 * lane +
    register."""
    register, lane = position % 16, position // 16 % 2
    thread, half = position // 32 % 128, position // 4096
    a, step = register % 4, register // 4
    channel = 64 * half + 16 * (thread // 32) + thread % 32 // 4 + 8 * (a % 2)
    return channel, 16 * step + 2 * (thread % 4) + 8 * (a // 2) + lane


def place(registers: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Cut registers int32 [16, R, 2, 128] into words int32 [words, R, 2, 128]."""
    words = registers.new_empty((layout.words, *registers.shape[1:]))
    filled: set[int] = set()
    field = torch.empty_like(registers[0])
    for piece in layout.pieces:
        source = registers[piece.register]
        target = words[piece.word] if piece.word not in filled else field
        _cut(source, piece, target)
        if target is field:
            words[piece.word].bitwise_or_(field)
        filled.add(piece.word)
    return words


def extract(words: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The inverse of `place`; bits that no piece names are 0."""
    registers = words.new_empty((REGISTERS, *words.shape[1:]))
    filled: set[int] = set()
    field = torch.empty_like(words[0])
    for piece in layout.pieces:
        source = words[piece.word]
        target = registers[piece.register] if piece.register not in filled else field
        _paste(source, piece, target)
        if target is field:
            registers[piece.register].bitwise_or_(field)
        filled.add(piece.register)
    return registers


def write_records(words: torch.Tensor, layout: Layout, records: torch.Tensor) -> None:
    """Store words [words, R, 2, 128] as the bytes of records, uint8 [R, record_bytes]."""
    for source, target in _planes(words, layout, records):
        target.copy_(source)


def read_records(records: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The inverse of `write_records`; records may lie apart, at multiples of 4 bytes."""
    words = torch.empty(
        (layout.words, records.shape[0], 2, 128), dtype=torch.int32, device=records.device
    )
    for target, source in _planes(words, layout, records):
        target.copy_(source)
    return words


def _planes(
    words: torch.Tensor, layout: Layout, records: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views of the same plane in both forms, [R, 2, 128, words of the plane]."""
    count = records.shape[0]
    flat = records.view(torch.int32)
    views = []
    for first, width in layout.sections:
        section = flat[:, 256 * first : 256 * (first + width)].view(count, 2, 128 * width)
        for word, size in planes(first, width):
            start = 128 * (word - first)
            stored = section[:, :, start : start + 128 * size].view(count, 2, 128, size)
            views.append((words[word : word + size].permute(1, 2, 3, 0), stored))
    return views


def _cut(register: torch.Tensor, piece: Piece, out: torch.Tensor) -> None:
    """Mask after shifting, so that copies of the sign bit fall away."""
    if piece.shift > 0:
        torch.bitwise_left_shift(register, piece.shift, out=out)
        out.bitwise_and_(_signed(piece.mask << piece.shift))
    elif piece.shift < 0:
        torch.bitwise_right_shift(register, -piece.shift, out=out)
        out.bitwise_and_(_signed(piece.mask >> -piece.shift))
    else:
        torch.bitwise_and(register, _signed(piece.mask), out=out)


def _paste(word: torch.Tensor, piece: Piece, out: torch.Tensor) -> None:
    if piece.shift > 0:
        torch.bitwise_right_shift(word, piece.shift, out=out)
        out.bitwise_and_(_signed(piece.mask))
    elif piece.shift < 0:
        torch.bitwise_left_shift(word, -piece.shift, out=out)
        out.bitwise_and_(_signed(piece.mask))
    else:
        torch.bitwise_and(word, _signed(piece.mask), out=out)


def _signed(mask: int) -> int:
    """A 32-bit mask as the int32 of the same bits."""
    mask &= 0xFFFFFFFF
    return mask - (1 << 32) if mask >= 1 << 31 else mask

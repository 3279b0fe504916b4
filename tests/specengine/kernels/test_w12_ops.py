"""The ops on a CPU, the cut of a product into thread blocks, and that the sources compile."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specengine.errors import OptionError
from specengine.kernels import build, nvrtc, ops
from specengine.kernels import w12_linear as kernels
from specengine.weights import encode

needs_compiler = pytest.mark.skipif(
    nvrtc.library() is None, reason="needs NVIDIA's run-time compiler"
)


def packed_arguments(matrix):
    packed = encode(matrix, "w12")
    return packed.records, packed.scale, packed.escapes, packed.escape_offsets


def random_matrix(channels, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(channels, width, generator=generator) * 0.02
    matrix[::7, ::5] = 0.0
    matrix[1::9, 3] = 64.0
    return matrix.bfloat16()


@pytest.mark.parametrize(("channels", "width"), [(128, 64), (130, 72), (5, 200)])
def test_the_reference_is_a_product_with_the_matrix(channels, width):
    matrix = random_matrix(channels, width)
    x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = ops.w12_linear(x, *packed_arguments(matrix), channels)
    assert torch.equal(y, torch.nn.functional.linear(x, matrix))
    assert torch.equal(ops.w12_decode(*packed_arguments(matrix), channels, width), matrix)


def test_ops_are_registered_and_traceable():
    matrix = random_matrix(130, 72)
    arguments = packed_arguments(matrix)
    x = torch.randn(4, 72).bfloat16()
    torch.library.opcheck(ops.w12_linear, (x, *arguments, 130))
    torch.library.opcheck(ops.w12_decode, (*arguments, 130, 72))


def test_records_of_another_width_are_refused():
    arguments = packed_arguments(random_matrix(128, 64))
    with pytest.raises(OptionError, match=r"not the .* of \[128, 192\]"):
        ops.w12_linear(torch.zeros(1, 192, dtype=torch.bfloat16), *arguments, 128)
    with pytest.raises(OptionError, match=r"torch\.float32"):
        ops.w12_linear(torch.zeros(1, 64), *arguments, 128)


@given(st.integers(1, 3000), st.integers(1, 600), st.sampled_from([66, 114, 132]))
def test_every_block_has_records_and_fits_a_multiprocessor(tiles, k_blocks, multiprocessors):
    blocks = kernels.blocks_for(tiles, k_blocks, multiprocessors)
    units = tiles * k_blocks
    assert 1 <= blocks <= multiprocessors
    starts = [block * units // blocks for block in range(blocks + 1)]
    assert all(start < stop for start, stop in zip(starts, starts[1:], strict=False))


@pytest.mark.parametrize("rows", range(1, 65))
def test_each_row_count_has_a_variant_that_fits(rows):
    variant = kernels.variant_for(rows)
    assert rows <= variant.rows <= max(8, 2 * rows)
    assert variant.shared_bytes() <= 227 * 1024
    assert variant.x_stages <= variant.stages


@needs_compiler
@pytest.mark.parametrize("variant", kernels.VARIANTS, ids=lambda variant: f"{variant.rows} rows")
def test_the_product_compiles_for_hopper(variant):
    code = nvrtc.compile_source(
        "w12_gemm.cu", build.source_text("w12_gemm"), "sm_90a", variant.defines()
    )
    assert code.startswith(b"\x7fELF")


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_120"])
def test_the_decoder_compiles_for_every_architecture(architecture):
    code = nvrtc.compile_source("w12_decode.cu", build.source_text("w12_decode"), architecture, ())
    assert code.startswith(b"\x7fELF")

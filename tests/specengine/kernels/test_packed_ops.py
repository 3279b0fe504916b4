"""The ops on a CPU, the cut of a product into thread blocks, and that the sources compile."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specengine.errors import OptionError
from specengine.kernels import build, nvrtc, ops, portable_linear
from specengine.kernels import packed_linear as kernels
from specengine.weights import decode_low_bit, decode_view, encode, encode_low_bit

needs_compiler = pytest.mark.skipif(
    nvrtc.library() is None, reason="needs NVIDIA's run-time compiler"
)


def packed_arguments(matrix, name="w12"):
    packed = encode(matrix, name)
    arrays = [packed.records, packed.scale, packed.escapes, packed.escape_offsets]
    return (*arrays, packed.record_offsets) if name == "w11s" else tuple(arrays)


def product_arguments(matrix, name="w12"):
    sizes = (encode(matrix, name).record_bytes(),) if name == "w11s" else ()
    return (*packed_arguments(matrix, name), *sizes)


def random_matrix(channels, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(channels, width, generator=generator) * 0.02
    matrix[::7, ::5] = 0.0
    matrix[1::9, 3] = 64.0
    return matrix.bfloat16()


@pytest.mark.parametrize(("channels", "width"), [(128, 64), (130, 72), (5, 200)])
@pytest.mark.parametrize("name", ["w12", "w11s"])
def test_the_reference_is_a_product_with_the_matrix(name, channels, width):
    linear = {"w12": ops.w12_linear, "w11s": ops.w11s_linear}[name]
    decode = {"w12": ops.w12_decode, "w11s": ops.w11s_decode}[name]
    matrix = random_matrix(channels, width)
    x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = linear(x, *product_arguments(matrix, name), channels)
    assert torch.equal(y, torch.nn.functional.linear(x, matrix))
    assert torch.equal(decode(*packed_arguments(matrix, name), channels, width), matrix)


@pytest.mark.parametrize("name", ["e2m5", "e2m4", "e2m3"])
def test_low_bit_references_are_products_with_what_they_decode_to(name):
    copy = encode_low_bit(random_matrix(130, 72), name)
    x = torch.randn(3, 72, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.nn.functional.linear(x, decode_low_bit(copy).bfloat16())
    assert torch.equal(ops.low_bit_linear(x, name, copy.records, copy.scale, 130), expected)


def test_the_view_is_a_product_with_its_matrix():
    packed = encode(random_matrix(130, 72), "w12n")
    x = torch.randn(3, 72, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.nn.functional.linear(x, decode_view(packed))
    assert torch.equal(ops.view_linear(x, packed.records, packed.scale, 130), expected)


def every_op():
    """Each op with its arguments."""
    matrix = random_matrix(130, 72)
    x = torch.randn(4, 72).bfloat16()
    view, copy = encode(matrix, "w12n"), encode_low_bit(matrix, "e2m4")
    return (
        (ops.w12_linear, (x, *packed_arguments(matrix), 130)),
        (ops.w12_decode, (*packed_arguments(matrix), 130, 72)),
        (ops.w11s_linear, (x, *product_arguments(matrix, "w11s"), 130)),
        (ops.w11s_decode, (*packed_arguments(matrix, "w11s"), 130, 72)),
        (ops.view_linear, (x, view.records, view.scale, 130)),
        (ops.low_bit_linear, (x, "e2m4", copy.records, copy.scale, 130)),
    )


def test_ops_are_registered_and_traceable():
    for op, arguments in every_op():
        torch.library.opcheck(op, arguments, test_utils=("test_schema", "test_faketensor"))


def test_compiled_functions_keep_the_ops():
    """Each is one graph with the op inside: its fake says shape and dtype."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(
            [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        )
        return graph.forward

    for op, arguments in every_op():
        torch._dynamo.reset()
        compiled = torch.compile(lambda *a, op=op: op(*a) * 2, backend=keep, fullgraph=True)
        assert torch.equal(compiled(*arguments), op(*arguments) * 2)
        assert any(op._name.replace("::", ".") in target for target in graphs.pop())
        assert not graphs


def test_records_of_another_width_are_refused():
    arguments = packed_arguments(random_matrix(128, 64))
    with pytest.raises(OptionError, match=r"1 records are not the 3 of \[128, 192\]"):
        ops.w12_linear(torch.zeros(1, 192, dtype=torch.bfloat16), *arguments, 128)
    with pytest.raises(OptionError, match=r"torch\.float32"):
        ops.w12_linear(torch.zeros(1, 64), *arguments, 128)
    x = torch.zeros(1, 64, dtype=torch.bfloat16)
    with pytest.raises(OptionError, match="are not the 1 of"):
        ops.w11s_linear(x, *packed_arguments(random_matrix(128, 64), "w11s"), 5760, 128)


@given(st.integers(1, 3000), st.integers(1, 600), st.sampled_from([66, 114, 132]))
def test_every_block_has_records_and_fits_a_multiprocessor(tiles, k_blocks, multiprocessors):
    blocks = kernels.blocks_for(tiles, k_blocks, multiprocessors)
    units = tiles * k_blocks
    assert 1 <= blocks <= multiprocessors
    parts = kernels.equal_parts(tiles, k_blocks, blocks)

    def start(block):  # `first_record` of packed_ring.cuh
        part = block % parts if parts else 0
        return block * units // blocks + (kernels.LEAD * (parts - part) if part else 0)

    starts = [start(block) for block in range(blocks + 1)]
    assert all(start < stop for start, stop in pairwise(starts))
    if parts:
        assert starts[::parts] == [tile * k_blocks for tile in range(tiles + 1)]
        assert starts[1] - starts[0] >= max(map(int.__rsub__, starts[1:parts], starts[2:]))


@given(st.integers(1, 3000), st.integers(1, 600), st.sampled_from([58, 108, 132, 170]))
def test_every_cut_of_a_tile_has_records(tiles, k_blocks, multiprocessors):
    cuts = portable_linear.cuts_for(tiles, k_blocks, multiprocessors)
    starts = [cut * k_blocks // cuts for cut in range(cuts + 1)]
    assert all(start < stop for start, stop in pairwise(starts))
    assert cuts == 1 or tiles * (cuts - 1) <= 2 * multiprocessors


@pytest.mark.parametrize("name", kernels.FORMATS)
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 32, 33, 48, 49, 64])
def test_each_row_count_has_a_variant_that_fits(name, rows):
    variant = kernels.variant_for(name, rows)
    assert rows <= variant.rows <= max(8, 2 * rows)
    assert 5 <= variant.x_stages <= variant.stages
    assert variant.shared_bytes() <= kernels.SHARED_BYTES


@needs_compiler
@pytest.mark.parametrize(
    ("name", "rows"),
    [("w12", rows) for rows in kernels.TILE_ROWS] + [(name, 32) for name in kernels.FORMATS],
)
def test_the_product_compiles_for_hopper(name, rows):
    defines = kernels.variant_for(name, rows).defines()
    source = build.source_text("packed_gemm")
    code = nvrtc.compile_source("packed_gemm.cu", source, "sm_90a", defines)
    assert code.startswith(b"\x7fELF")


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("name", [name for name in kernels.FORMATS if name != "w11s"])
def test_the_portable_product_compiles_for_every_architecture(name, architecture):
    assert portable_linear.multiplies(name, (8, 0))
    source = build.source_text("packed_mma")
    defines = portable_linear.defines_for(name, 16)
    code = nvrtc.compile_source("packed_mma.cu", source, architecture, defines)
    assert code.startswith(b"\x7fELF")


@needs_compiler
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("macro", ["W12", "W12N", "W11S"])
def test_the_decoder_compiles_for_every_architecture(macro, architecture):
    source = build.source_text("packed_decode")
    code = nvrtc.compile_source("packed_decode.cu", source, architecture, [f"FORMAT={macro}"])
    assert code.startswith(b"\x7fELF")

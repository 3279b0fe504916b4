"""The kernels against FP64 and against the plain torch reference, on a Hopper GPU."""

import pytest
import torch

from specengine.kernels import ops, portable_linear
from specengine.kernels import packed_linear as kernels
from specengine.weights import decode_low_bit, decode_view, encode, encode_low_bit

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"),
]

SHAPES = [(384, 512), (200, 1000), (1000, 328), (128, 64), (5120, 6144), (2432, 5120), (16, 4104)]
ROWS = [1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64]
LOSSLESS = ["w12", "w12n", "w11s"]
LOSSY = ["w12n_view", "e2m5", "e2m4", "e2m3"]
KERNELS = [
    *((name, kernels.multiply) for name in LOSSLESS + LOSSY),
    *((name, portable_linear.multiply) for name in ["w12", "w12n", *LOSSY]),
]


def natural_matrix(channels, width):
    """Channels of different scales, with planted zeros, outliers and extreme values."""
    torch.manual_seed(channels + width)
    matrix = torch.randn(channels, width, device="cuda")
    matrix *= torch.rand(channels, 1, device="cuda") * 0.04 + 0.005
    matrix[::37, 7] = 64.0
    matrix[3::41, 9] = 0.0
    matrix[5::43, width - 1] = 1e-39
    matrix[channels // 2] = 0.0
    return matrix.bfloat16()


def packed_weights(matrix, name):
    """Weights for the kernels, and the matrix that they stand for."""
    if name == "w12n_view":
        packed = encode(matrix, "w12n")
        return kernels.Weights(name, packed.records, packed.scale), decode_view(packed)
    if name in LOSSY:
        copy = encode_low_bit(matrix, name)
        return kernels.Weights(name, copy.records, copy.scale), decode_low_bit(copy)
    return kernels.Weights.of(encode(matrix, name)), matrix


class Case:
    def __init__(self, name, channels, width, multiply=kernels.multiply):
        self.multiply = multiply
        original = natural_matrix(channels, width)
        self.weights, self.matrix = packed_weights(original, name)
        self.x = torch.randn(64, width, device="cuda").bfloat16()
        self.x[:, 7] *= 2**-10  # or outliers drown what else could be wrong
        self.expected = self.x.double() @ self.matrix.double().T

    def product(self, rows):
        """Of the first rows, in an output that starts as NaN."""
        y = torch.full((rows, self.matrix.shape[0]), torch.nan, dtype=torch.bfloat16, device="cuda")
        self.multiply(self.x[:rows], self.weights, y)
        return y

    def arguments(self):
        return tuple(self.weights.tensors().values())


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def shape(request):
    return request.param


@pytest.fixture(
    scope="module", params=KERNELS, ids=lambda case: f"{case[0]}-{case[1].__module__[19:]}"
)
def case(request, shape):
    name, multiply = request.param
    return Case(name, *shape, multiply)


@pytest.fixture(scope="module", params=LOSSLESS)
def lossless_case(request, shape):
    return Case(request.param, *shape)


def test_products_are_within_rounding_of_fp64(case):
    for rows in ROWS:
        y, expected = case.product(rows).double(), case.expected[:rows]
        assert (y - expected).norm() / expected.norm() < 2.5e-3
        # and channel by channel, so that a lost escape cannot hide among the others
        errors, norms = (y - expected).norm(dim=0), expected.norm(dim=0)
        assert (errors <= 6e-3 * norms).all()
        assert (y[:, case.matrix.shape[0] // 2] == 0).all()


def test_a_row_has_the_same_bits_in_any_company(case):
    whole = case.product(64)
    for rows in range(1, 64):
        assert torch.equal(case.product(rows), whole[:rows])


def test_a_hundred_runs_give_the_same_bits(case):
    for rows in (1, 32):
        first = case.product(rows)
        assert all(torch.equal(case.product(rows), first) for _ in range(100))


def test_decoding_gives_the_matrix_back(lossless_case):
    matrix = lossless_case.matrix
    out = torch.full(matrix.shape, torch.nan, dtype=torch.bfloat16, device="cuda")
    kernels.decode(lossless_case.weights, out)
    assert torch.equal(out.view(torch.int16), matrix.view(torch.int16))


@pytest.mark.parametrize("name", LOSSLESS)
def test_every_bit_pattern_is_decoded(name):
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cuda").to(torch.int16)
    matrix = patterns.view(torch.bfloat16).reshape(512, 128)
    out = torch.zeros_like(matrix)
    kernels.decode(packed_weights(matrix, name)[0], out)
    assert torch.equal(out.view(torch.int16), matrix.view(torch.int16))


@pytest.mark.parametrize("multiply", [kernels.multiply, portable_linear.multiply])
def test_logits_in_float32_are_not_rounded_to_bfloat16(multiply):
    case = Case("e2m5", 2432, 5120)
    y = torch.full((3, 2432), torch.nan, device="cuda")
    multiply(case.x[:3], case.weights, y)
    assert (y.double() - case.expected[:3]).norm() / case.expected[:3].norm() < 1e-5


@pytest.mark.parametrize("width", [250, 64, 1001])
@pytest.mark.parametrize("name", ["w12", "w11s"])
def test_any_rows_of_any_width_go_through_the_op(name, width):
    linear = {"w12": ops.w12_linear, "w11s": ops.w11s_linear}[name]
    case = Case(name, 300, width)
    weights = case.weights
    arguments = [weights.records, weights.scale, weights.escapes, weights.escape_offsets]
    if name == "w11s":
        arguments += [weights.record_offsets, weights.record_bytes]
    x = torch.randn(3, 50, width + 3, device="cuda").bfloat16()[..., 1 : width + 1]
    y = linear(x, *arguments, 300)
    expected = x.double() @ case.matrix.double().T
    assert (y.double() - expected).norm() / expected.norm() < 2.5e-3
    many = torch.randn(400, width, device="cuda").bfloat16()
    assert torch.equal(linear(many, *arguments, 300), torch.nn.functional.linear(many, case.matrix))
    assert linear(many[:0], *arguments, 300).shape == (0, 300)


def test_not_a_number_stays_in_its_row():
    case = Case("w12", 2432, 5120)
    whole = case.product(9)
    case.x[4, 100] = torch.nan
    y = case.product(9)
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(y[others], whole[others])
    assert y[4].isnan().all()


def test_a_graph_may_be_captured_once_all_is_prepared():
    case = Case("w11s", 384, 512)
    kernels.prepare("w11s", 0)
    y = torch.full((40, 384), torch.nan, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.multiply(case.x[:40], case.weights, y)
    graph.replay()
    assert torch.equal(y, case.product(40))


def test_a_graph_replays_the_same_bits():
    case = Case("w12", 2432, 5120)
    x = case.x[:5].clone()
    expected = ops.w12_linear(x, *case.arguments(), 2432)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            y = ops.w12_linear(x, *case.arguments(), 2432)
    y.fill_(torch.nan)
    graph.replay()
    assert torch.equal(y, expected)
    x.copy_(case.x[5:10])
    graph.replay()
    assert torch.equal(y, ops.w12_linear(x, *case.arguments(), 2432))


def test_a_compiled_function_keeps_the_op():
    case = Case("w12", 384, 512)

    @torch.compile(fullgraph=True)
    def layer(x):
        return ops.w12_linear(x * 2, *case.arguments(), 384) + 1

    expected = ops.w12_linear(case.x * 2, *case.arguments(), 384) + 1
    assert torch.equal(layer(case.x), expected)

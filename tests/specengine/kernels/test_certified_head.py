"""The certified argmax on a CPU: its arithmetic, its bound, its reference; that kernels compile."""

import pytest
import torch

from specengine.errors import OptionError
from specengine.kernels import build, certified_head, nvrtc, ops
from specengine.weights import decode_low_bit, encode_head


def arguments(head):
    copy = encode_head(head)
    return head, copy.copy.records, copy.copy.scale, copy.residual_norm, copy.weight_norm


def test_the_arithmetic_is_close_to_fp64(heads):
    head, hidden = heads.draw(70, 600), heads.draw(3, 600, seed=9)
    logits = certified_head.exact_logits(hidden, head)
    assert logits.dtype == torch.float32
    assert ((logits - hidden.double() @ head.double().T).abs() < 1e-4).all()


def test_the_order_of_the_sum_is_the_stated_one():
    hidden = torch.ones(1, 512, dtype=torch.bfloat16)
    inputs = {0: 2.0**24, 1: 1.0, 256: -(2.0**24), 8: 1.0}
    head = torch.zeros(1, 512, dtype=torch.bfloat16)
    for k, value in inputs.items():
        head[0, k] = value
    # Lane 0 adds 1 to 2^24, which rounds it away; lane 1 keeps its own.
    assert certified_head.exact_logits(hidden, head).item() == 1.0
    head[0, [1, 9]] = head[0, [9, 1]]
    assert certified_head.exact_logits(hidden, head).item() == 2.0


@pytest.mark.parametrize("name", ["peaked", "near_ties", "extremes"])
def test_the_bound_holds(heads, name):
    head, hidden = getattr(heads, name)(300, 520)
    copy = encode_head(head)
    logits = certified_head.exact_logits(hidden, head).double()
    approximate = hidden.double() @ decode_low_bit(copy.copy).double().T
    norms = hidden.double().norm(dim=1, keepdim=True)
    residual, weight = copy.residual_norm[:300].double(), copy.weight_norm[:300].double()
    lost = certified_head.accumulation(520) * (weight + residual) * norms + 2.0**-108 * (weight + 1)
    finite = logits.isfinite()
    assert ((logits - approximate).abs() <= norms * residual + lost)[finite].all()
    assert finite.float().mean() > 0.5


@pytest.mark.parametrize("name", ["peaked", "near_ties", "not_numbers", "extremes"])
def test_the_reference_takes_the_lowest_of_the_largest(heads, name):
    head, hidden = getattr(heads, name)(300, 520)
    tokens, counts = ops.certified_argmax(hidden, *arguments(head))
    logits = certified_head.exact_logits(hidden, head)
    for token, row in zip(tokens.tolist(), logits, strict=True):
        wrong = row.isnan()
        best = wrong if wrong.any() else row == row.max()
        assert token == best.nonzero()[0].item()
    assert counts.tolist() == [300] * len(hidden)


def test_the_op_is_registered_and_refuses_what_does_not_fit(heads):
    head, hidden = heads.draw(130, 72), heads.draw(6, 72, seed=7).view(2, 3, 72)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops.certified_argmax, (hidden, *arguments(head)), test_utils=checks)
    with pytest.raises(OptionError, match=r"head is .*\[130, 72\], hidden states have 80"):
        ops.certified_argmax(heads.draw(1, 80), *arguments(head))
    with pytest.raises(OptionError, match="multiple of 8"):
        ops.certified_argmax(heads.draw(1, 71), *arguments(heads.draw(130, 71)))
    with pytest.raises(OptionError, match="contiguous"):
        ops.certified_argmax(hidden, head.T.contiguous().T, *arguments(head)[1:])


@pytest.mark.skipif(nvrtc.library() is None, reason="needs NVIDIA's run-time compiler")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("name", ["head_judge", "head_settle"])
def test_the_kernels_compile_for_every_architecture(name, architecture):
    source = build.source_text(name)
    code = nvrtc.compile_source(f"{name}.cu", source, architecture, ())
    assert code.startswith(b"\x7fELF")

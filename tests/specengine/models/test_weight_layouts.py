"""Prepacked and joined weights give the outputs of plain ones."""

import numpy as np
import pytest
import torch
from torch import nn

from specengine.decoding.options import EngineOptions
from specengine.errors import OptionError
from specengine.models import Target
from specengine.models import linear as linear_module
from specengine.models.layers import RootMeanSquareNorm
from specengine.models.linear import PrepackedLinear, RowLinear, replace_linear

LAYOUTS = [
    EngineOptions(fused_projections=True),
    EngineOptions(linear="prepacked"),
    EngineOptions(linear="prepacked", fused_projections=True),
]


def _logits(target, tree, prompt):
    cache = target.new_cache(64)
    first = target.forward(cache, prompt)
    target.commit(cache, range(len(prompt)))
    second = target.forward(cache, torch.as_tensor(tree.tokens), tree)
    hidden = torch.cat([first.hidden, second.hidden])
    return target.logits(hidden), target.logits_fp32(hidden)


@pytest.mark.parametrize("options", LAYOUTS, ids=["joined", "prepacked", "both"])
def test_every_layout_equals_plain(family, tiny_model, tree_maker, options):
    tree = tree_maker(np.random.default_rng(0), 5, 12, 0.5)
    prompt = torch.arange(3, 25)
    want, _ = _logits(Target(tiny_model(family)), tree, prompt)
    target = Target(tiny_model(family), options=options)
    got, head_fp32 = _logits(target, tree, prompt)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head_fp32, want, rtol=1e-4, atol=1e-4)
    assert target.parameter_bytes() == Target(tiny_model(family)).parameter_bytes()


def test_norms_are_bitwise_those_they_stand_in_for(family, tiny_model):
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model(family).to(dtype)
        x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
        want = model.model.norm(x)
        norm = Target(model).model.model.norm
        assert isinstance(norm, RootMeanSquareNorm)
        assert torch.equal(norm(x), want)


def test_joined_layers_keep_no_second_copy(family, tiny_model):
    plain = sum(p.nbytes for p in Target(tiny_model(family)).model.parameters())
    joined = Target(tiny_model(family), options=EngineOptions(fused_projections=True))
    assert sum(p.nbytes for p in joined.model.parameters()) == plain


def test_prepacking_leaves_no_plain_linear(family, tiny_model):
    options = EngineOptions(linear="prepacked", fused_projections=True)
    model = Target(tiny_model(family), options=options).model
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_prepacked_layer_holds_the_exact_weight(dtype, bias):
    source = nn.Linear(48, 80, bias=bias).to(dtype).requires_grad_(False)
    holder = nn.Sequential(source)
    replace_linear(holder, PrepackedLinear)
    packed = holder[0]
    assert isinstance(packed, PrepackedLinear)
    assert torch.equal(packed.plain_weight(), source.weight)
    for rows in (1, 16, 70):
        x = torch.randn(rows, 48).to(dtype)
        torch.testing.assert_close(packed(x), source(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (1, 1, 48), (2, 48), (1, 17, 48), (0, 48)])
def test_row_layer_equals_the_layer_it_stands_in_for(dtype, bias, shape):
    source = nn.Linear(48, 80, bias=bias).to(dtype).requires_grad_(False)
    layer = RowLinear(source)
    assert layer.weight is source.weight
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    got = layer(x)
    assert got.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, source(x), rtol=tolerance, atol=tolerance)


def test_quick_rows_are_summed_in_float32_and_leave_the_switch_as_it_was(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    source = nn.Linear(1536, 64, bias=False).bfloat16().requires_grad_(False)
    source.weight.copy_(torch.randn(64, 1536, generator=generator))
    row = torch.randn(1, 1536, generator=generator).bfloat16()
    layer, exact = RowLinear(source), row.double() @ source.weight.double().T
    # One rounding to bfloat16, and sums that cancel lose what float32 loses.
    torch.testing.assert_close(layer(row).double(), exact, rtol=2**-8, atol=1e-3)
    assert torch.backends.mkldnn.enabled

    def failing(weight, row):
        assert not torch.backends.mkldnn.enabled
        raise RuntimeError("no memory left")

    monkeypatch.setattr(torch, "mv", failing)
    with pytest.raises(RuntimeError, match="no memory left"):
        layer(row)
    assert torch.backends.mkldnn.enabled


def test_a_plain_target_on_a_cpu_has_row_layers_only(family, tiny_model):
    model = Target(tiny_model(family)).model
    assert not [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert type(model.lm_head) is RowLinear


def test_unavailable_prepacking_is_an_error_not_a_fallback(tiny_model, monkeypatch):
    monkeypatch.setattr(linear_module.torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(OptionError, match=r"linear: 'prepacked' is not available.*use 'plain'"):
        Target(tiny_model("llama"), options=EngineOptions(linear="prepacked"))


def test_bfloat16_target_stays_close_to_float32(family, tiny_model):
    prompt = torch.arange(3, 40)
    target = Target(tiny_model(family).to(torch.bfloat16))
    hidden = target.forward(target.new_cache(64), prompt).hidden
    assert hidden.dtype == torch.bfloat16
    assert target.logits(hidden).dtype == torch.bfloat16
    assert target.logits_fp32(hidden).dtype == torch.float32
    wide = Target(tiny_model(family))
    want = wide.logits(wide.forward(wide.new_cache(64), prompt).hidden)
    assert (target.logits(hidden).float() - want).abs().mean() < 0.1 * want.abs().mean()

"""Which layers of any module are packed, and what those that are go on doing."""

import copy
import pickle

import pytest
import torch
from torch import nn

from specengine.errors import OptionError
from specengine.integrations.packed_module import PackedLinear
from specengine.integrations.transformers import compress
from specengine.weights import decode, encode


def _linear(width: int = 128, out: int = 128) -> nn.Linear:
    return nn.Linear(width, out, bias=False).bfloat16()


@pytest.mark.parametrize(("width", "out"), [(2**16 + 1, 8), (0, 8), (8, 0), (8, 8)])
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_layers_that_cannot_be_packed_stay(width: int, out: int) -> None:
    model = compress(nn.Sequential(_linear(), _linear(width, out), _linear()))
    assert [type(layer) for layer in model] == [PackedLinear, nn.Linear, PackedLinear]


def test_a_second_time_is_refused_and_changes_nothing() -> None:
    model = compress(nn.Sequential(_linear()))
    before = model[0]
    with pytest.raises(OptionError, match="is compressed already, as w12"):
        compress(model, "w11s")
    assert model[0] is before


def test_layers_without_data_are_refused() -> None:
    model = nn.Sequential(_linear(), _linear().to("meta"))
    with pytest.raises(OptionError, match="meta device"):
        compress(model)
    assert type(model[0]) is nn.Linear


def test_a_layer_in_several_places_stays_one() -> None:
    layer = _linear()
    model = nn.Module()
    model.first, model.second, model.inner = layer, layer, nn.Sequential(_linear(), layer)
    names = [*model.state_dict()]
    compress(model)
    assert isinstance(model.first, PackedLinear)
    assert model.first is model.second is model.inner[1]
    assert [*model.state_dict()] == names


def test_hooked_layers_stay() -> None:
    """A hook may make the weight from others, whose names a checkpoint holds."""
    normed, watched = torch.nn.utils.spectral_norm(_linear()), _linear()
    seen: list[int] = []
    watched.register_forward_hook(lambda *call: seen.append(1))
    model = nn.Sequential(_linear(), normed, watched).eval()
    x, before = torch.randn(2, 128).bfloat16(), model.state_dict()
    expected = model(x)
    compress(model)
    assert [type(layer) for layer in model] == [PackedLinear, nn.Linear, nn.Linear]
    assert torch.equal(model(x), expected)
    assert seen == [1, 1]
    assert model.state_dict().keys() == before.keys()


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_is_kept(training: bool) -> None:
    assert compress(nn.Sequential(_linear()).train(training))[0].training is training


def test_an_assigned_weight_is_packed() -> None:
    """As when weights are tied again."""
    model, other = compress(nn.Sequential(_linear())), _linear()
    model[0].weight = other.weight
    assert [*model.state_dict()] == ["0.weight"]
    assert not [*model.parameters()]
    assert torch.equal(model.state_dict()["0.weight"], other.weight)


@pytest.mark.parametrize("form", ["w12", "w11s"])
def test_copies_are_whole_and_apart(form: str) -> None:
    model = compress(nn.Sequential(_linear()), form)
    weight = model.state_dict()["0.weight"]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.state_dict()["0.weight"], weight)
        other.load_state_dict({"0.weight": weight * 2})
        assert torch.equal(other.state_dict()["0.weight"], weight * 2)
        assert torch.equal(model.state_dict()["0.weight"], weight)


@pytest.mark.parametrize("width", [129, 191, 193])
def test_rows_of_another_width_are_refused(width: int) -> None:
    """Records are padded to whole blocks of inputs, so they do not show their width."""
    model = compress(nn.Sequential(_linear(192)))
    with pytest.raises(OptionError, match=f"x has {width} inputs, the layer 192"):
        model(torch.zeros(1, width).bfloat16())


def test_weights_that_lie_apart_are_packed_in_their_order() -> None:
    matrix = torch.randn(256, 300).bfloat16()
    for strided in (matrix.T, matrix[::2, ::3], matrix.expand(2, -1, -1)[1]):
        assert torch.equal(decode(encode(strided)), strided)

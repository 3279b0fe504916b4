"""Packed weights inside Transformers models."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from specengine.errors import CheckpointError, OptionError
from specengine.integrations.packed_module import PackedLinear
from specengine.integrations.transformers import compress, load
from specengine.weights.encode_folder import encode_folder

PROMPT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def _model(*, tied: bool = False, bias: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    model = LlamaForCausalLM(config).eval()
    # Weights alone: rotary frequencies are float32 in models that are loaded.
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and torch.equal(left[name].view(torch.int16), right[name].view(torch.int16))
        for name in left
    )


@pytest.mark.parametrize("form", ["w12", "w11s"])
@pytest.mark.parametrize("tied", [False, True])
def test_compressed_models_are_the_same_model(form: str, tied: bool) -> None:
    model = _model(tied=tied, bias=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        expected = model(PROMPT).logits
        compress(model, form)
        assert torch.equal(model(PROMPT).logits, expected)
    packed = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    assert len(packed) == 15
    assert all(layer.format == form for layer in packed)
    assert f"format={form}" in repr(model)
    assert _same(before, model.state_dict())


@pytest.mark.parametrize("form", ["w12", "w11s"])
def test_compiled_layers_are_one_graph(form: str) -> None:
    """For any number of rows, and with the bits that they have without a compiler."""
    torch.manual_seed(1)
    first, second = nn.Linear(128, 250), nn.Linear(250, 128, bias=False)
    model = compress(nn.Sequential(first, nn.GELU(), second).bfloat16(), form)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (1, 3, 70):
            x = torch.randn(rows, 128).bfloat16()
            assert torch.equal(compiled(x), model(x))


def test_state_dicts_travel_both_ways() -> None:
    model, other = _model(), _model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    packed = compress(copy.deepcopy(model))
    packed.load_state_dict(other.state_dict())
    assert _same(packed.state_dict(), other.state_dict())
    model.load_state_dict(packed.state_dict())
    assert _same(model.state_dict(), other.state_dict())


def test_wrong_state_dicts_are_refused() -> None:
    layer = compress(nn.Sequential(nn.Linear(256, 128, bias=False).bfloat16()))
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({})
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict({"0.weight": torch.zeros(3, 4).bfloat16()})


def test_moving_to_another_dtype_keeps_the_scales() -> None:
    layer = compress(nn.Sequential(nn.Linear(256, 128, bias=False).bfloat16()))
    weight = layer.state_dict()["0.weight"]
    layer.to(torch.float16)
    assert torch.equal(layer.state_dict()["0.weight"], weight)


@pytest.mark.parametrize("form", ["w12", "w12n", "w11s"])
@pytest.mark.parametrize("tied", [False, True])
def test_encoded_folders_load(form: str, tied: bool, tmp_path: Path) -> None:
    model = _model(tied=tied)
    model.save_pretrained(tmp_path / "model")
    encode_folder(tmp_path / "model", tmp_path / "out", form, threads=1, report=lambda step: None)
    loaded = load(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(loaded(PROMPT).logits, model(PROMPT).logits)
    assert _same(loaded.state_dict(), model.state_dict())
    count = sum(isinstance(layer, PackedLinear) for layer in loaded.modules())
    assert (count >= 14) == (form != "w12n")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("form", ["w12", "w11s"])
def test_encoded_folders_load_onto_a_gpu(form: str, tmp_path: Path) -> None:
    model = _model()
    model.save_pretrained(tmp_path / "model")
    encode_folder(tmp_path / "model", tmp_path / "out", form, threads=1, report=lambda step: None)
    loaded = load(tmp_path / "out", device="cuda")
    assert all(tensor.is_cuda for tensor in loaded.state_dict().values())
    state = {name: tensor.cpu() for name, tensor in loaded.state_dict().items()}
    assert _same(state, model.state_dict())
    with torch.no_grad():
        logits = loaded(PROMPT.cuda()).logits.cpu().float()
        expected = model.float()(PROMPT).logits
    assert (logits - expected).norm() / expected.norm() < 2e-2


def test_folders_of_another_model_are_refused(tmp_path: Path) -> None:
    model = _model()
    model.save_pretrained(tmp_path / "model")
    encode_folder(tmp_path / "model", tmp_path / "out", "w12", threads=1, report=lambda step: None)
    config = tmp_path / "out" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(CheckpointError, match="lacks 9 tensors"):
        load(tmp_path / "out")
    config.write_text(text.replace('"intermediate_size": 256', '"intermediate_size": 320'))
    with pytest.raises(CheckpointError, match="has shape"):
        load(tmp_path / "out")


def test_what_cannot_be_compressed_is_refused() -> None:
    with pytest.raises(OptionError, match="no bfloat16 linear layer"):
        compress(nn.Sequential(nn.Linear(256, 128)))
    with pytest.raises(OptionError, match="use w12 or w11s"):
        compress(_model(), "w12n")

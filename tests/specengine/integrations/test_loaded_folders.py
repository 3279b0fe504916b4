"""Folders whose tensors differ from what `save_pretrained` writes: ties, dtypes, buffers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from specengine.errors import CheckpointError
from specengine.integrations import transformers as integration
from specengine.integrations.transformers import load
from specengine.weights.encode_folder import encode_folder

PROMPT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
HEAD, TABLE, DOWN = "lm_head.weight", "model.embed_tokens.weight", "down_proj.weight"
State = dict[str, torch.Tensor]


def _state(tied: bool, folder: Path) -> State:
    """Of a model of one layer that is saved in a folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def _encoded(state: State, folder: Path, form: str = "w12", out: str = "out") -> Path:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    encode_folder(folder, folder.with_name(out), form, threads=1, report=lambda step: None)
    return folder.with_name(out)


def _another_head(state: State) -> None:
    state[HEAD] = state[TABLE] * 2


def _the_same_head(state: State) -> None:
    state[HEAD] = state[TABLE].clone()


def _nothing_but_the_head(state: State) -> None:
    state[HEAD] = state.pop(TABLE)


def _plain_head(state: State) -> None:
    state[HEAD] = torch.randn(256, 128).half()


@pytest.mark.parametrize("form", ["w12", "w12n", "w11s"])
@pytest.mark.parametrize(
    "change", [_another_head, _the_same_head, _nothing_but_the_head, _plain_head]
)
def test_heads_of_tied_models_are_those_of_the_folder(
    form: str, change: Callable[[State], None], tmp_path: Path
) -> None:
    state = _state(True, tmp_path / "model")
    change(state)
    loaded = load(_encoded(state, tmp_path / "model", form))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        assert torch.equal(loaded(PROMPT).logits, expected(PROMPT).logits)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("part", ["norm.weight", DOWN])
def test_other_precisions_become_the_models(part: str, dtype: torch.dtype, tmp_path: Path) -> None:
    state = _state(False, tmp_path / "model")
    for name in state:
        if name.endswith(part):
            state[name] = state[name].to(dtype) * 1.001
    loaded = load(_encoded(state, tmp_path / "model"))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        assert torch.equal(loaded(PROMPT).logits, expected(PROMPT).logits)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantized_weights_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Without their scales they are other weights."""
    state = _state(False, tmp_path / "model")
    name = next(name for name in state if name.endswith(DOWN))
    state[name] = state[name].to(dtype)
    out = _encoded(state, tmp_path / "model")
    with pytest.raises(CheckpointError, match=f"has the dtype {dtype}, the model computes with"):
        load(out)


def test_generation_goes_on_as_the_folder_says(tmp_path: Path) -> None:
    state = _state(False, tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [7, 9]}))
    loaded = load(_encoded(state, tmp_path / "model"))
    assert loaded.generation_config.eos_token_id == [7, 9]


class _WithState(LlamaForCausalLM):
    """Buffers that checkpoints hold, and one that they do not."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.register_buffer("correction", torch.zeros(3, dtype=torch.float32))
        self.register_buffer("scratch", torch.full((2,), 5.0), persistent=False)


def test_buffers_of_the_state_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Auto:
        @staticmethod
        def from_config(config: LlamaConfig, dtype: torch.dtype) -> LlamaForCausalLM:
            return _WithState._from_config(config, dtype=dtype)

    monkeypatch.setattr(integration, "AutoModelForCausalLM", Auto)
    state = _state(False, tmp_path / "model")
    correction = torch.tensor([1.0, 1 / 3, 1e-30])
    loaded = load(_encoded({**state, "correction": correction}, tmp_path / "model"))
    assert torch.equal(loaded.correction, correction)
    assert loaded.scratch.tolist() == [5.0, 5.0]
    with pytest.raises(CheckpointError, match="lacks 1 tensors, the first is correction"):
        load(_encoded(state, tmp_path / "model", out="other"))

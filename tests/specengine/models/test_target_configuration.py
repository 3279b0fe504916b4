"""Odd values in a target's configuration: one line with file, key, value and what is allowed."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specengine.errors import CheckpointError
from specengine.models import Target, load_target
from specengine.models.configuration import check_config

GONE = object()
LLAMA: list[tuple[str, object, str]] = [
    ("num_attention_heads", 0, "from 1"),
    ("num_attention_heads", "4", "from 1"),
    ("num_attention_heads", True, "from 1"),
    ("num_attention_heads", 4.0, "from 1"),
    ("num_key_value_heads", 0, "from 1"),
    ("num_key_value_heads", 3, "a divisor of 4"),
    ("hidden_size", -32, "from 1"),
    ("hidden_size", 10**30, "from 1"),
    ("num_hidden_layers", -1, "from 1"),
    ("num_hidden_layers", "2", "from 1"),
    ("vocab_size", None, "from 1"),
    ("vocab_size", GONE, "from 1"),
    ("hidden_size", GONE, "from 1"),
    ("intermediate_size", GONE, "from 1"),
    ("num_hidden_layers", GONE, "from 1"),
    ("num_attention_heads", GONE, "from 1"),
    ("model_type", 5, "family"),
    ("model_type", GONE, "family"),
    ("head_dim", 15, "even"),
    ("hidden_act", "nope", "activation"),
    ("hidden_act", ["silu"], "activation"),
    ("dtype", "bfloat17", "dtype"),
    ("torch_dtype", "bfloat17", "dtype"),
    ("rms_norm_eps", 0, "above 0"),
    ("rms_norm_eps", float("nan"), "above 0"),
    ("eos_token_id", "2", "token id"),
    ("eos_token_id", [2, None], "token id"),
    ("eos_token_id", -1, "token id"),
    ("tie_word_embeddings", "false", "true or false"),
    ("rope_parameters", [1], "an object"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": float("nan")}, "above 0"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 0}, "above 0"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": "x"}, "above 0"),
    ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": -2.0}, "above 0"),
    ("rope_parameters", {"full_attention": {"rope_theta": float("inf")}}, "above 0"),
    ("num_hidden_layers", 1, "2, as in the shards"),
    ("num_hidden_layers", 2**31 - 1, "2, as in the shards"),
    ("layer_types", ["full_attention"], "one per layer"),
    ("layer_types", "full_attention", "a list"),
    ("max_position_embeddings", 0, "from 1"),
    ("text_config", 3, "an object"),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}, "gptq"),
    ("quantization_config", {"quant_method": "fp8"}, "made from"),
]
LEAF = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.floats(width=32),
    st.sampled_from(["", "silu"]),
)
ODD = LEAF | st.lists(LEAF, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "x"]), LEAF)


@pytest.fixture(scope="module")
def saved(tiny_model, tmp_path_factory):
    """Saved tiny models by family."""
    folders = {}
    for name in ("llama", "gemma3", "qwen3_5"):
        folders[name] = tmp_path_factory.mktemp(name)
        tiny_model(name).save_pretrained(folders[name])
    return folders


def _edited(folder: Path, base: Path, key: str, value: object) -> Path:
    shutil.copytree(base, folder, dirs_exist_ok=True)
    table = json.loads((folder / "config.json").read_text())
    table.pop(key, None)
    if value is not GONE:
        table[key] = value
    (folder / "config.json").write_text(json.dumps(table))
    return folder


def _refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_target(folder, dtype="float32")
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("key", "value", "allowed"), LLAMA)
def test_an_odd_value_names_file_key_and_what_is_allowed(saved, tmp_path, key, value, allowed):
    message = _refusal(_edited(tmp_path / "m", saved["llama"], key, value))
    assert "config.json" in message
    assert key in message
    assert allowed in message
    if isinstance(value, str | int) and len(str(value)) < 20:
        assert json.dumps(value) in message


def test_the_text_part_of_a_multimodal_configuration_is_checked_too(saved, tmp_path):
    text = json.loads((saved["llama"] / "config.json").read_text())
    for key, value in (("num_attention_heads", "4"), ("quantization_config", {"bits": 4})):
        whole = {"model_type": "x", "text_config": {**text, key: value}}
        (tmp_path / "config.json").write_text(json.dumps(whole))
        with pytest.raises(CheckpointError, match=key):
            check_config(tmp_path)


@pytest.mark.parametrize("value", ["2", [1.5], {"id": 2}, True])
def test_stop_tokens_of_the_generation_file_are_checked(saved, tmp_path, value):
    folder = shutil.copytree(saved["llama"], tmp_path / "m")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    message = _refusal(folder)
    assert "generation_config.json: eos_token_id" in message


def test_what_published_configurations_leave_out_is_not_asked_for(saved, tmp_path):
    for name, base in saved.items():
        folder = shutil.copytree(base, tmp_path / name)
        table = json.loads((folder / "config.json").read_text())
        for key in ("dtype", "attention_bias", "tie_word_embeddings", "bos_token_id"):
            table[key] = table.get(key)
        table["quantization_config"] = None
        (folder / "config.json").write_text(json.dumps({k: v for k, v in table.items() if v}))
        check_config(folder)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["llama", "gemma3", "qwen3_5"]), value=ODD)
def test_no_value_of_any_key_ends_in_a_traceback(saved, tmp_path, data, name, value):
    keys = sorted(json.loads((saved[name] / "config.json").read_text()))
    key = data.draw(st.sampled_from(keys))
    folder = _edited(tmp_path / name, saved[name], key, value)
    try:
        load_target(folder, dtype="float32")
    except CheckpointError as error:
        assert "\n" not in str(error)


def test_no_stop_tokens_are_not_the_configurations(tiny_model):
    assert Target(tiny_model("llama"), eos_token_ids=frozenset()).eos_token_ids == frozenset()
    assert Target(tiny_model("llama")).eos_token_ids == {2}

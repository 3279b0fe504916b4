"""Checkpoint folders: what loads, and the one line that each bad one ends with."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from specengine.errors import CheckpointError, OptionError
from specengine.models import Target, load_target


@pytest.fixture(scope="module")
def saved(tiny_model, tmp_path_factory):
    """A saved tiny Llama; copy it before damaging it."""
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the saved model that the test may damage."""
    return shutil.copytree(saved, tmp_path / "model")


def _edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _edit_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def _refusal(folder, **arguments):
    with pytest.raises(CheckpointError) as caught:
        load_target(folder, dtype="float32", **arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_loaded_target_equals_the_model_in_memory(family, tiny_model, tmp_path):
    tiny_model(family).save_pretrained(tmp_path)
    target = load_target(tmp_path, dtype="float32", taps=(0,))
    prompt = torch.arange(3, 20)
    want = Target(tiny_model(family), taps=(0,))
    got = target.forward(target.new_cache(32), prompt)
    expected = want.forward(want.new_cache(32), prompt)
    assert torch.equal(got.hidden, expected.hidden)
    assert torch.equal(got.features, expected.features)
    assert (target.hidden_size, target.vocab_size, target.max_positions) == (64, 61, 256)
    assert target.eos_token_ids == {2}


def test_text_model_is_taken_out_of_a_multimodal_checkpoint(tiny_model, tmp_path):
    text = tiny_model("qwen3_5").config.to_dict()
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
    }
    torch.manual_seed(0)
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision))
    model.eval().save_pretrained(tmp_path)
    prompt = torch.arange(3, 20)
    with torch.no_grad():
        want = model(input_ids=prompt[None]).logits[0]
    target = load_target(tmp_path, dtype="float32")
    got = target.logits(target.forward(target.new_cache(32), prompt).hidden)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_stop_tokens_of_both_configurations_count(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_target(folder, dtype="float32").eos_token_ids == {2, 5, 6}


def test_sharded_checkpoint_loads_and_a_lost_shard_is_named(tiny_model, tmp_path):
    tiny_model("llama").save_pretrained(tmp_path, max_shard_size="100KB")
    load_target(tmp_path, dtype="float32")
    lost = sorted(tmp_path.glob("model-*.safetensors"))[1]
    lost.unlink()
    assert lost.name in _refusal(tmp_path)


def test_missing_folder_and_empty_folder(tmp_path):
    assert "is not a folder" in _refusal(tmp_path / "absent")
    assert "no model.safetensors" in _refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 40, 0.5, 0.999])
def test_truncated_shard_is_named(folder, keep):
    shard = folder / "model.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[: keep if keep >= 1 else int(len(data) * keep)])
    message = _refusal(folder)
    assert "model.safetensors" in message
    assert "truncated" in message


@pytest.mark.parametrize("header", [b"not json", b"[1, 2]", b'{"a": {"shape": [1]}}'])
def test_corrupt_header_is_named(folder, header):
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    message = _refusal(folder)
    assert "model.safetensors: " in message
    assert "corrupt header" in message or "tensor 'a'" in message


def test_missing_tensor_is_named(folder):
    _edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "model.layers.1.mlp.up_proj.weight" in _refusal(folder)


def test_tensor_of_another_shape_is_named(folder):
    name = "model.layers.0.mlp.up_proj.weight"
    _edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(7, 64)}))
    message = _refusal(folder)
    assert name in message
    assert "7" in message


@pytest.mark.parametrize("name", ["mlp.up_proj.bias", "self_attn.q_norm.weight", "x.scale_inv"])
def test_a_tensor_that_the_layers_would_not_read_is_named(folder, name):
    whole = f"model.layers.1.{name}"
    _edit_tensors(folder, lambda tensors: tensors.update({whole: torch.ones(3)}))
    assert f"{whole} is not part of the model that config.json describes" in _refusal(folder)


def test_what_belongs_to_no_layer_is_left_out(folder):
    extra = ("mtp.layers.0.norm.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    _edit_tensors(folder, lambda tensors: tensors.update({n: torch.ones(3) for n in extra}))
    load_target(folder, dtype="float32")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_codes_of_numbers_are_no_weights(folder, dtype):
    name = "model.layers.1.mlp.up_proj.weight"
    _edit_tensors(folder, lambda t: t.update({name: torch.zeros(t[name].shape).to(dtype)}))
    message = _refusal(folder)
    assert f"{name} is stored as" in message
    assert "BF16" in message


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "lost"])
def test_a_name_without_a_file_behind_it_is_no_absent_file(folder, file, kind):
    path = folder / file
    path.unlink(missing_ok=True)
    {"pipe": os.mkfifo, "folder": Path.mkdir, "lost": lambda p: p.symlink_to("gone")}[kind](path)
    assert f"{file}: " in _refusal(folder)


def test_the_code_of_a_checkpoint_is_neither_run_nor_asked_about(folder, capfd):
    (folder / "own.py").write_text("raise SystemExit(3)\n")
    _edit_config(folder, model_type="own", auto_map={"AutoConfig": "own.Config"})
    assert "config.json" in _refusal(folder)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weight_is_named(folder, number):
    name = "model.layers.1.self_attn.o_proj.weight"
    _edit_tensors(folder, lambda tensors: tensors[name].view(-1)[77].fill_(number))
    message = _refusal(folder)
    assert name in message
    assert "non-finite" in message


def test_weights_that_overflow_nothing_in_bfloat16_load(folder):
    name = "model.layers.1.self_attn.o_proj.weight"
    _edit_tensors(folder, lambda tensors: tensors[name].view(-1)[77].fill_(1e30))
    load_target(folder, dtype="bfloat16")


def test_unsupported_architecture_is_named(folder):
    _edit_config(folder, model_type="gpt2")
    assert "'gpt2' is not supported" in _refusal(folder)
    _edit_config(folder, model_type="no_such_model")
    assert "config.json" in _refusal(folder)


def test_rotary_types_that_follow_the_length_are_refused(folder):
    _edit_config(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    assert "rotary type 'dynamic'" in _refusal(folder)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_broken_configuration_is_named(folder, text):
    (folder / "config.json").write_text(text)
    assert "config.json" in _refusal(folder)
    (folder / "config.json").unlink()
    assert "config.json" in _refusal(folder)


def test_unknown_dtype_and_absent_device(folder):
    with pytest.raises(OptionError, match="dtype: 'float16'"):
        load_target(folder, dtype="float16")
    with pytest.raises(OptionError, match="device"):
        load_target(folder, device="tpu")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's map of memory")
def test_weights_do_not_stay_mapped_to_their_shards(folder):
    target = load_target(folder, dtype="float32")
    mapped = Path("/proc/self/maps").read_text()
    assert not [str(shard) for shard in folder.glob("*.safetensors") if str(shard) in mapped]
    assert target.parameter_bytes() > 0

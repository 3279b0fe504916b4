"""Loading is strict both ways, and every refusal names what is wrong."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.drafters.checkpoint import INDEX, write_network
from specengine.drafters.config import parse_config
from specengine.drafters.network import DFlash2Network
from specengine.errors import CheckpointError, OptionError

ONE = "model-00001-of-00001.safetensors"


@pytest.fixture
def folder(tmp_path, make_config, make_network):
    config = make_config()
    write_network(make_network(config), config, tmp_path / "drafter", shard_bytes=2**24)
    return tmp_path / "drafter"


def _change(folder, change):
    tensors = load_file(folder / ONE)
    change(tensors)
    # One file without an index, which would find a missing tensor by itself.
    (folder / INDEX).unlink()
    (folder / ONE).unlink()
    save_file(tensors, folder / "model.safetensors")


def _configure(folder, **changes):
    path = folder / "config.json"
    table = json.loads(path.read_text())
    table.update(changes)
    path.write_text(json.dumps(table))


def test_the_published_27b_shape_has_the_published_size():
    table = {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e7, "rope_type": "default"},
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "num_target_layers": 64,
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 2048,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "mask_token_id": 248070,
            "selector_rank": 256,
            "selector_top_k": 16,
            "target_layer_ids": [5, 19, 33, 47, 61],
        },
    }
    with torch.device("meta"):
        state = DFlash2Network(parse_config(table, "config.json")).state_dict()
    assert len(state) == 81
    assert 2 * sum(tensor.numel() for tensor in state.values()) == 3_848_808_960
    assert state["layers.0.attention_conv.base_kernel"].shape == (2, 2, 5120)
    assert state["layers.4.mlp_conv.kernel_projection.weight"].shape == (1280, 5120)
    assert state["candidate_selector.predecessor_codebook"].shape == (248320, 256)


def test_written_drafters_load_as_they_were(folder, target, make_config, make_network):
    drafter = load_drafter("dflash2", folder, target)
    assert drafter.kind == "dflash2"
    assert drafter.taps == (1, 3)
    assert drafter.trained_positions == 7
    wanted = make_network(make_config()).bfloat16().float().state_dict()
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name
    assert drafter.config == make_config()


def test_shards_stay_below_their_limit(tmp_path, make_config, make_network, target):
    config = make_config()
    write_network(make_network(config), config, tmp_path, shard_bytes=65536)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert all(shard.stat().st_size <= 65536 for shard in shards)
    load_drafter("dflash2", tmp_path, target)
    with pytest.raises(CheckpointError, match="more than a shard"):
        write_network(make_network(config), config, tmp_path, shard_bytes=20000)


def test_names_with_the_model_prefix_load(folder, target):
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / ONE).items()}
    (folder / INDEX).unlink()
    (folder / ONE).unlink()
    save_file(tensors, folder / "model.safetensors")
    load_drafter("dflash2", folder, target)


def _poison(tensors):
    tensors["fc.weight"][3, 5] = float("inf")


def _transpose(tensors):
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("norm.weight"), "'norm.weight' is missing"),
        (lambda t: t.update(extra=torch.zeros(1)), "'extra' is not part of this drafter"),
        (_transpose, "'fc.weight' has shape"),
        (_poison, "'fc.weight' holds non-finite"),
    ],
)
def test_wrong_tensors_are_named(folder, target, change, message):
    _change(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_drafter("dflash2", folder, target)


def test_a_truncated_file_is_refused(folder, target):
    data = (folder / ONE).read_bytes()
    (folder / ONE).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="truncated"):
        load_drafter("dflash2", folder, target)


def test_a_missing_shard_or_a_broken_index_is_refused(folder, target):
    (folder / ONE).unlink()
    with pytest.raises(CheckpointError, match=ONE):
        load_drafter("dflash2", folder, target)
    (folder / INDEX).write_text("[]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        load_drafter("dflash2", folder, target)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", 32, "hidden_size is 32, the target's is 64"),
        ("vocab_size", 60, "vocab_size is 60, the target's is 61"),
        ("num_target_layers", 7, "num_target_layers is 7, the target's is 6"),
        ("dflash_config", None, "lacks the field"),
        ("rms_norm_eps", "small", 'rms_norm_eps is "small": it must be a finite number above 0'),
        ("num_target_layers", 4, "below the last target layer"),
        ("rope_scaling", {"factor": 2.0}, "scaled rotary"),
        ("layer_types", ["full_attention"], "must name every layer"),
        ("layer_types", ["sliding_attention"] * 2, "sliding_window"),
        ("layer_types", ["linear_attention"] * 2, "full_attention and sliding_attention"),
    ],
)
def test_configs_that_do_not_fit_are_refused(folder, target, field, value, message):
    _configure(folder, **{field: value})
    with pytest.raises(CheckpointError, match=message):
        load_drafter("dflash2", folder, target)


NAN = float("nan")
ODD = [
    ("hidden_size", "64"), ("hidden_size", 64.5), ("hidden_size", NAN), ("head_dim", 15),
    ("head_dim", 0), ("num_key_value_heads", 0), ("num_attention_heads", True),
    ("num_hidden_layers", 2**30), ("num_hidden_layers", 3), ("rms_norm_eps", NAN),
    ("rms_norm_eps", -1e-6), ("rope_parameters", {"rope_theta": NAN}),
    ("rope_parameters", {"rope_theta": 0}), ("rope_parameters", [1]), ("rope_scaling", "x"),
    ("rope_scaling", {"rope_type": "linear", "factor": NAN}), ("sliding_window", 0),
    ("sliding_window", -4), ("layer_types", 3), ("layer_types", [{}, {}]), ("is_causal", "no"),
    ("attention_bias", "x"), ("max_position_embeddings", "a"), ("vocab_size", 61.0),
]  # fmt: skip
ODD_OF_BLOCKS = [
    ("block_size", "8"), ("block_size", 8.5), ("block_size", 0), ("block_size", 10**9),
    ("mask_token_id", 3.5), ("mask_token_id", True), ("mask_token_id", -1),
    ("target_layer_ids", [0.7, 1]), ("target_layer_ids", ["a"]), ("target_layer_ids", 3),
    ("conv_group_size", 0), ("conv_kernel_size", 0), ("conv_kernel_size", -1),
    ("selector_rank", 0), ("selector_top_k", 0), ("output_multiplier", NAN),
    ("input_embedding_scale", float("inf")), ("final_logit_softcapping", -1.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "inner"),
    [(*pair, False) for pair in ODD] + [(*pair, True) for pair in ODD_OF_BLOCKS],
)
def test_an_odd_field_is_named_with_what_is_allowed(folder, target, field, value, inner):
    table = json.loads((folder / "config.json").read_text())
    (table["dflash_config"] if inner else table)[field] = value
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match=f"config.json: {field} is .*: it must be"):
        load_drafter("dflash2", folder, target)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool])
def test_codes_of_numbers_are_no_weights(folder, target, dtype):
    _change(folder, lambda t: t.update({"fc.weight": torch.zeros(t["fc.weight"].shape).to(dtype)}))
    with pytest.raises(CheckpointError, match=f"'fc.weight' has dtype {dtype}"):
        load_drafter("dflash2", folder, target)


def test_a_mask_token_outside_the_embedding_is_refused(folder, target):
    table = json.loads((folder / "config.json").read_text())
    table["dflash_config"]["mask_token_id"] = 61
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="mask_token_id 61 lies outside"):
        load_drafter("dflash2", folder, target)


def test_missing_fields_and_unreadable_configs_are_refused(folder, target):
    table = json.loads((folder / "config.json").read_text())
    del table["intermediate_size"]
    (folder / "config.json").write_text(json.dumps(table))
    with pytest.raises(CheckpointError, match="lacks the field 'intermediate_size'"):
        load_drafter("dflash2", folder, target)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_drafter("dflash2", folder, target)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_drafter("dflash2", folder, target)


def test_unknown_kinds_are_refused_with_the_nearest(folder, target):
    with pytest.raises(OptionError, match="did you mean 'dflash'"):
        load_drafter("dflash3", folder, target)


def test_prepacked_linears_draft_the_same(folder, target):
    plain = load_drafter("dflash2", folder, target)
    packed = load_drafter("dflash2", folder, target, EngineOptions(linear="prepacked"))
    features = torch.randn(5, 128, generator=torch.Generator().manual_seed(2))
    lattices = []
    for drafter in (plain, packed):
        state = drafter.new_state(8)
        drafter.extend(state, features, np.zeros(5, dtype=np.int64))
        lattices.append(drafter.draft(state, 4, 5))
    assert lattices[0].ids.tolist() == lattices[1].ids.tolist()
    assert abs(lattices[0].edge - lattices[1].edge).max() < 1e-4
    assert plain.parameter_bytes() == packed.parameter_bytes()

"""Configurations as their authors publish them: kind, taps, slots and causality by content."""

import pytest
import torch

from specengine.drafters.checkpoint import new_network
from specengine.drafters.config import parse_config
from specengine.drafters.layers import rotary_tables
from specengine.drafters.published import canonical_name
from specengine.errors import CheckpointError

QWEN = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "vocab_size": 151936, "max_position_embeddings": 40960,
}  # fmt: skip
DFLASH = {"block_size": 16, "mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
OWN_TABLES = {"embed_tokens.weight", "lm_head.weight"}
EAGLE = {"layers.0.hidden_norm.weight", "fc.weight"}


def _parse(table, names=()):
    return parse_config(table, "config.json", names)


def test_the_authors_dflash():
    config = _parse({**QWEN, "num_target_layers": 36, "block_size": 16, "dflash_config": DFLASH})
    assert (config.kind, config.slots, config.trained_positions) == ("dflash", "in_place", 15)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.is_causal == (False,) * 5
    with torch.device("meta"):
        assert len(new_network(config).state_dict()) == 58


def test_taps_stay_in_the_order_that_the_projection_was_trained_on():
    config = _parse({**QWEN, "dflash_config": {**DFLASH, "target_layer_ids": [9, 1, 33]}})
    assert config.target_layer_ids == (9, 1, 33)


def test_older_checkpoints_have_causal_windows():
    kinds = ["sliding_attention"] * 4 + ["full_attention"]
    table = {**QWEN, "layer_types": kinds, "sliding_window": 2048, "dflash_config": DFLASH}
    assert _parse(table).is_causal == (True,) * 4 + (False,)
    assert _parse({**table, "is_causal": False}).is_causal == (False,) * 5
    nested = {**DFLASH, "causal": True}
    assert _parse({**table, "dflash_config": nested}).is_causal == (True,) * 5


def test_windows_under_another_name():
    config = _parse({**QWEN, "dflash_config": {**DFLASH, "use_swa": True, "swa_window_size": 99}})
    assert [config.window(layer) for layer in range(5)] == [99] * 5


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_deepspec_dspark(head):
    table = {
        **QWEN, **DFLASH, "block_size": 7, "num_anchors": 512, "markov_rank": 256,
        "markov_head_type": head, "enable_confidence_head": True,
        "confidence_head_with_markov": True, "tie_word_embeddings": False,
    }  # fmt: skip
    config = _parse(table, OWN_TABLES)
    assert (config.kind, config.slots, config.trained_positions) == ("dspark", "shifted", 7)
    assert config.own_embedding
    assert config.own_head
    with torch.device("meta"):
        state = new_network(config).state_dict()
    assert state["markov_head.markov_w1.weight"].shape == (151936, 256)
    assert state["confidence_head.proj.weight"].shape == (1, 2560 + 256)


def test_deepspec_dflash_has_shifted_slots():
    table = {**QWEN, **DFLASH, "block_size": 7, "num_anchors": 512, "markov_rank": 0}
    config = _parse({**table, "enable_confidence_head": False})
    assert (config.kind, config.slots, config.trained_positions) == ("dflash", "shifted", 7)


def _speculators(kind, **fields):
    layers = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 2560}
    return {
        "speculators_model_type": kind, "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": [2, 18, 33], "block_size": 8, "mask_token_id": 5, **fields,
    }  # fmt: skip


def test_speculators_count_taps_from_the_embedding_and_leave_defaults_out():
    config = _parse(_speculators("dflash"))
    assert (config.kind, config.slots) == ("dflash", "in_place")
    assert config.target_layer_ids == (1, 17, 32)
    assert (config.num_attention_heads, config.head_dim, config.vocab_size) == (32, 128, 151936)
    assert config.num_target_layers is None


def test_speculators_dspark_states_its_slots_or_leaves_them_open():
    table = _speculators("dspark", markov_rank=4)
    assert _parse(table).slots is None
    assert _parse({**table, "sample_from_anchor": True}).slots == "shifted"
    assert _parse({**table, "sample_from_anchor": False}).slots == "in_place"
    nested = {**DFLASH, "projector_type": "dspark", "markov_rank": 4}
    assert _parse({**QWEN, "dflash_config": nested}).slots is None


def test_speculators_windows():
    table = _speculators("dflash")
    table["transformer_layer_config"] |= {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512,
        "use_sliding_window": True,
    }  # fmt: skip
    assert _parse(table).is_causal == (True, False)
    assert _parse({**table, "sliding_window_non_causal": True}).is_causal == (False, False)


def test_drafters_with_fewer_tokens():
    config = _parse(_speculators("dflash", draft_vocab_size=32000), {"lm_head.weight", "d2t"})
    with torch.device("meta"):
        state = new_network(config).state_dict()
    assert state["lm_head.weight"].shape == (32000, 2560)
    assert state["d2t"].shape == (32000,)
    assert "embed_tokens.weight" not in state


def test_eagle3_as_its_authors_publish_it():
    table = {**QWEN, "num_hidden_layers": 1, "draft_vocab_size": 32000, "hidden_act": "silu"}
    config = _parse(table, EAGLE | {"lm_head.weight", "d2t", "t2d"})
    assert (config.kind, config.target_layer_ids) == ("eagle3", ())
    assert not config.qk_norm
    nested = {"eagle_aux_hidden_state_layer_ids": [2, 18, 33], "use_aux_hidden_state": True}
    config = _parse({**table, "eagle_config": nested}, EAGLE)
    assert config.target_layer_ids == (1, 17, 32)


def test_eagle3_of_another_width():
    table = {**QWEN, "num_hidden_layers": 1, "draft_vocab_size": 32000, "target_hidden_size": 8192}
    config = _parse({**table, "target_layer_ids": [1, 17, 32]}, EAGLE | OWN_TABLES)
    with torch.device("meta"):
        state = new_network(config).state_dict()
    assert state["fc.weight"].shape == (2560, 3 * 8192)
    assert state["layers.0.self_attn.q_proj.weight"].shape == (4096, 2 * 2560)


def test_a_tied_head_is_the_drafters_own_embedding():
    table = {**QWEN, "num_hidden_layers": 1, "ttt_length": 7, "tie_word_embeddings": True}
    config = _parse(table, EAGLE | {"embed_tokens.weight"})
    assert config.tied_head
    assert not _parse(table, EAGLE).tied_head
    # A head that is there is used, whatever the flag says.
    assert not _parse(table, EAGLE | OWN_TABLES).tied_head


def test_an_assistant_of_transformers():
    table = {
        **QWEN, **DFLASH, "model_type": "muse_glimmer_assistant", "sliding_window": 2048,
        "layer_types": ["sliding_attention"] * 5,
    }  # fmt: skip
    config = _parse(table)
    assert (config.kind, config.slots, config.is_causal) == ("dflash", "in_place", (False,) * 5)


@pytest.mark.parametrize(
    ("published", "own"),
    [
        ("model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("encoder.fc.weight", "fc.weight"),
        ("encoder.output_norm_enc.weight", "hidden_norm.weight"),
        (
            "candidate_selector.successor_codebook.weight",
            "candidate_selector.successor_codebook",
        ),
    ],
)
def test_names_of_tensors(published, own):
    assert canonical_name(published) == own


@pytest.mark.parametrize(
    ("table", "names", "message"),
    [
        ({**QWEN}, (), "describes no DFlash, DFlash2, DSpark or EAGLE-3"),
        ({**QWEN}, ("hidden_norm.weight",), "lacks the field 'block_size'"),
        (
            {**QWEN, "dflash_config": DFLASH},
            ("candidate_selector.hidden_projection.weight",),
            "lacks the field 'conv_kernel_size'",
        ),
        ({**QWEN, **DFLASH, "markov_rank": 4, "markov_head_type": "x"}, (), "markov_head_type"),
        ({**QWEN, "ttt_length": 7}, EAGLE, "num_hidden_layers is 5: it must be 1"),
        (_speculators("dflash", aux_hidden_state_layer_ids=3), (), "must be a list of layers"),
        ({**_speculators("x"), "transformer_layer_config": {"model_type": "?"}}, (), "understood"),
        ({**QWEN, "dflash_config": DFLASH, "attention_value_scale": 2.0}, (), "value_scale is 2.0"),
        ({**QWEN, "dflash_config": {**DFLASH, "is_neox_style": False}}, (), "is_neox_style"),
        ({**QWEN, "dflash_config": DFLASH, "hidden_size": 0}, (), "hidden_size is 0: it must be"),
        ({**QWEN, "dflash_config": {**DFLASH, "block_size": 1}}, (), "block_size must be at least"),
    ],
)
def test_what_cannot_be_read_is_refused(table, names, message):
    with pytest.raises(CheckpointError, match=message):
        _parse(table, names)


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    ],
)
@pytest.mark.parametrize("older", [True, False])
def test_scaled_rotary_positions_are_those_of_transformers(scaling, older):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    table = {**QWEN, "dflash_config": DFLASH}
    if older:
        table["rope_scaling"] = {"type" if k == "rope_type" else k: v for k, v in scaling.items()}
    else:
        table["rope_parameters"] = {**scaling, "rope_theta": table.pop("rope_theta")}
    config = _parse(table)
    assert _parse(config.to_json()) == config
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=2560, num_attention_heads=32, head_dim=128, max_position_embeddings=40960,
            rope_parameters={**scaling, "rope_theta": 1e6},
        )
    )  # fmt: skip
    positions = torch.tensor([0, 1, 77, 5000, 39999])
    for own, wanted in zip(
        rotary_tables(positions, config), theirs(torch.zeros(1), positions[None]), strict=True
    ):
        assert (own - wanted[0]).abs().max() < 1e-6


def test_rotary_positions_that_depend_on_the_length_are_refused():
    table = {**QWEN, "dflash_config": DFLASH, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    with pytest.raises(CheckpointError, match="scaled rotary positions must be of type linear"):
        _parse(table)

"""A tiny random target, and a drafter for it that knows nothing."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from specengine.drafters.checkpoint import write_network
from specengine.drafters.config import parse_config
from specengine.drafters.network import DFlash2Network

VOCABULARY, HIDDEN = 61, 64


def write_target(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        # Short outputs would be noisy, so the stop token is never the likeliest.
        model.lm_head.weight[config.eos_token_id] = 0
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "t2",
        "chat_template": "{% for message in messages %}{{ message.content }} {% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(table), encoding="utf-8")


def write_drafter(folder: Path, layers: int = 2) -> None:
    table = {
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0},
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "num_target_layers": 3,
        "layer_types": ["full_attention"] * layers,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "mask_token_id": 3,
            "selector_rank": 8,
            "selector_top_k": 5,
            "target_layer_ids": [0, 1],
        },
    }
    config = parse_config(table, "test")
    torch.manual_seed(1)
    network = DFlash2Network(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    write_network(network, config, folder, shard_bytes=2**24)

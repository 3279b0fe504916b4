"""A tiny random model and the embedded engine on it: real servers that start in a second or two."""

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer, models

from specpilot.core.deployment import Deployment, parse_deployment
from specpilot.core.measurement import Isolation
from specpilot.core.requests import Request
from specpilot.core.system import Checkout, System
from specpilot.sandbox.probe import probe

VOCABULARY = 61
STRONGEST = Isolation.NONE if Isolation.NAMESPACES in probe().unavailable else Isolation.NAMESPACES


def write_model(folder: Path) -> None:
    """A Llama of two layers with a tokenizer of words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    pieces = {f"t{index}": index for index in range(VOCABULARY)}
    Tokenizer(models.WordLevel(pieces, unk_token="t0")).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "t2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")


def make_deployment(model: Path, isolation: Isolation) -> Deployment:
    return parse_deployment(
        {
            "name": "tiny",
            "target": {"model": str(model), "dtype": "float32"},
            "drafter": {"kind": "dflash2", "model": str(model)},
            "engine": {"threads": 1},
            "platform": {"isolation": isolation.value},
        },
        where="test",
    )


def export(files: dict[str, bytes], folder: Path) -> Checkout:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tree_hash = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
    options = {"tree": "chain", "positions": 0, "nodes": 0}
    system = System(commit="0" * 40, tree_hash=tree_hash, options=options)
    return Checkout(system=system, path=folder, autoregressive=True)


def make_request(index: int, limit: int = 40) -> Request:
    prompt = tuple(3 + (index * 7 + place * 5) % (VOCABULARY - 3) for place in range(9))
    return Request(
        id=f"own/{index}", benchmark="own", prompt_token_ids=prompt, max_new_tokens=limit
    )

